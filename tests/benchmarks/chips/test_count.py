"""Counts of compiled programs, compared with manual counts and with XLA's."""

import jax
import jax.numpy as jnp
import pytest
from chips.count import Work, count

# A loop of ten steps inside one of unknown length; a fusion that slices, and one that updates in place.
TEXT = """HloModule jit_f, is_scheduled=true

%add (a.1: f32[], b.1: f32[]) -> f32[] {
  %a.1 = f32[] parameter(0)
  %b.1 = f32[] parameter(1)
  ROOT %s.1 = f32[] add(%a.1, %b.1)
}

%sliced (p.0: f32[1000,8], p.1: s32[]) -> f32[1,8] {
  %p.0 = f32[1000,8]{1,0} parameter(0)
  %p.1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %row = f32[1,8]{1,0} dynamic-slice(%p.0, %p.1, %zero), dynamic_slice_sizes={1,8}
  ROOT %twice = f32[1,8]{1,0} add(%row, %row)
}

%updated (q.0: f32[1000,8], q.1: f32[1,8], q.2: s32[]) -> f32[1000,8] {
  %q.0 = f32[1000,8]{1,0} parameter(0)
  %q.1 = f32[1,8]{1,0} parameter(1)
  %q.2 = s32[] parameter(2)
  %none = s32[] constant(0)
  ROOT %put = f32[1000,8]{1,0} dynamic-update-slice(%q.0, %q.1, %q.2, %none)
}

%inner (t.0: (s32[], f32[1000,8])) -> (s32[], f32[1000,8]) {
  %t.0 = (s32[], f32[1000,8]{1,0}) parameter(0)
  %k = s32[] get-tuple-element(%t.0), index=0
  %x = f32[1000,8]{1,0} get-tuple-element(%t.0), index=1
  %f.1 = f32[1,8]{1,0} fusion(%x, %k), kind=kLoop, calls=%sliced
  %f.2 = f32[1000,8]{1,0} fusion(%x, %f.1, %k), kind=kLoop, calls=%updated
  ROOT %r.0 = (s32[], f32[1000,8]{1,0}) tuple(%k, %f.2)
}

%cond (c.0: (s32[], f32[1000,8])) -> pred[] {
  %c.0 = (s32[], f32[1000,8]{1,0}) parameter(0)
  ROOT %true = pred[] constant(true)
}

%cheap (u.0: f32[1000,8]) -> f32[1000,8] {
  ROOT %u.0 = f32[1000,8]{1,0} parameter(0)
}

%dear (u.1: f32[1000,8]) -> f32[1000,8] {
  %u.1 = f32[1000,8]{1,0} parameter(0)
  ROOT %n.1 = f32[1000,8]{1,0} negate(%u.1)
}

%outer (t.1: (s32[], f32[1000,8])) -> (s32[], f32[1000,8]) {
  %t.1 = (s32[], f32[1000,8]{1,0}) parameter(0)
  %which = pred[] constant(true)
  %y = f32[1000,8]{1,0} get-tuple-element(%t.1), index=1
  %w.1 = (s32[], f32[1000,8]{1,0}) while(%t.1), condition=%cond, body=%inner, TRIPS
  %z = f32[1000,8]{1,0} conditional(%which, %y, %y), branch_computations={%dear, %cheap}
  ROOT %r.1 = (s32[], f32[1000,8]{1,0}) tuple(%t.1, %z)
}

ENTRY %main (m.0: f32[1000,8], m.1: s32[4], m.2: f32[4,8]) -> f32[1000,8] {
  %m.0 = f32[1000,8]{1,0:T(8,128)} parameter(0)
  %m.1 = s32[4]{0} parameter(1)
  %m.2 = f32[4,8]{1,0} parameter(2)
  %start = s32[] constant(0)
  %close = f32[4,8]{1,0:T(8,128)S(1)} negate(%m.2)
  %s.2 = f32[1000,8]{1,0} scatter(%m.0, %m.1, %close), update_window_dims={1}, to_apply=%add
  %t.2 = (s32[], f32[1000,8]{1,0}) tuple(%start, %s.2)
  %w.2 = (s32[], f32[1000,8]{1,0}) while(%t.2), condition=%cond, body=%outer
  %o = f32[1000,8]{1,0} get-tuple-element(%w.2), index=1
  ROOT %wide = f64[1000,8]{1,0} convert(%o)
}
""".replace("TRIPS", 'backend_config={"known_trip_count":{"n":"10"}}')


def test_counts_match_manual_counts():
    found = count(TEXT)
    row, table = 4 * 8, 4 * 8 * 1000
    # f.1 reads a row and a number, and writes a row; f.2 reads a row and a number, and writes a row.
    assert found.step == Work(10 * 2 * (2 * row + 4), 10 * 8, 20)
    # negate reads m.2 and writes close by; the scatter reads the table and m.1, and writes the table.
    once = 4 * row + (2 * table + 4 * 4) + 3 * table
    assert found.once == Work(once, 4 * 8, 3)
    assert (found.scatter_adds, found.float64, found.conditionals, found.unknown_loops) == (1, 1, 1, 1)
    assert found.collectives == 0


def test_a_prefetched_slice_counts_as_one_read():
    fetched = "((f32[1000,8]{1,0}), f32[250,8]{1,0:T(8,128)PLACE}, s32[]{:S(2)}) slice-start(%o), slice={}"
    slice_bytes = 4 * 250 * 8
    for place, moved in (("S(1)", slice_bytes), ("", 2 * slice_bytes)):
        line = f"  %s.9 = {fetched.replace('PLACE', place)}\n  ROOT %wide"
        found = count(TEXT.replace("  ROOT %wide", line))
        before = count(TEXT).once
        assert found.once == before + Work(moved, 0, 1)


@pytest.mark.parametrize("word", ["all-reduce", "all-gather-start", "collective-permute"])
def test_collectives_are_counted(word):
    line = f"  %c.9 = f32[1000,8]{{1,0}} {word}(%o), replica_groups={{}}, to_apply=%add\n  ROOT %wide"
    assert count(TEXT.replace("  ROOT %wide", line)).collectives == 1


def test_operation_counts_of_matrix_products_match_xla():
    def f(x, y):
        return jnp.einsum("bij,bjk->bik", x, y)

    x, y = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((3, 17, 29), (3, 29, 13)))
    compiled = jax.jit(f).lower(x, y).compile()
    assert count(compiled.as_text()).once.flops == compiled.cost_analysis()["flops"] == 2 * 3 * 17 * 29 * 13


def test_loop_steps_are_counted_separately():
    def f(x, steps):
        return jax.lax.fori_loop(0, steps, lambda _, x: jnp.sin(x) @ x, x @ x)

    shapes = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    found = count(jax.jit(f).lower(*shapes).compile().as_text())
    product = 2 * 64**3
    assert found.unknown_loops == 1
    assert product <= found.once.flops < 1.1 * product
    assert product + 64**2 <= found.step.flops < 1.1 * product
