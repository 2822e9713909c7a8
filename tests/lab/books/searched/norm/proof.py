INSTANCE = {"x": [3]}
CONTROL = {"x": [1]}
found, control = (sum(c * c for c in one["x"]) for one in (INSTANCE, CONTROL))
print(found, control)
raise SystemExit(found <= 8 or control > 8)
