(figure => {
  const all = selector => [...figure.querySelectorAll(selector)], one = selector => figure.querySelector(selector);
  const data = JSON.parse(one("script[type='application/json']").textContent), last = data.readouts.length - 1;
  const bar = one(".bar"), slider = one("input"), play = one("button"), readout = one("output");
  const cells = all("tr").map(row => [...row.querySelectorAll("td")]), tokens = all(".token"), margins = all(".margin");
  const place = (dot, name, value) => {
    dot.setAttribute("visibility", value === null ? "hidden" : "visible");
    if (value !== null) dot.setAttribute(name, value);
  };
  const curves = all("svg[data-curve]").map(svg => {
    const points = data.curves[svg.dataset.curve], line = svg.querySelector(".so-far"), dot = svg.querySelector(".now");
    // A tap or a drag selects the nearest point of the path.
    const seek = event => {
      const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
      const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
      const away = points.map(point => point ? Math.hypot(point.split(",")[0] - x, point.split(",")[1] - y) : Infinity);
      stop();
      show(away.indexOf(Math.min(...away)));
    };
    svg.addEventListener("pointerdown", seek);
    svg.addEventListener("pointermove", event => event.buttons && seek(event));
    return k => {
      const [x, y] = points[k] ? points[k].split(",") : [null, null];
      line.setAttribute("points", points.slice(0, k + 1).filter(Boolean).join(" "));
      place(dot, "cx", x);
      place(dot, "cy", y);
    };
  });
  function show(k) {
    slider.value = k;
    slider.setAttribute("aria-valuetext", data.readouts[k]);
    readout.textContent = data.readouts[k];
    curves.forEach(move => move(k));
    data.attention.forEach((row, i) => {
      const most = Math.max(...row.map(weights => weights[k]));
      row.forEach((weights, j) => {
        const cell = cells[i][j];
        cell.style.setProperty("--q", weights[k]);
        cell.className = weights[k] === most ? "most" : "";
        cell.querySelector("small").textContent = (weights[k] / 1000).toFixed(2);
      });
    });
    const [zero, unit] = data.scale;
    tokens.forEach((dot, i) => place(dot, "cy", data.scores[i][k] === null ? null : (zero + unit * data.scores[i][k]).toFixed(1)));
    margins.forEach((dot, i) => place(dot, "cx", data.margins[i][k]));
  }
  let timer = 0;
  const stop = () => { clearInterval(timer); timer = 0; play.textContent = "Play"; };
  slider.addEventListener("input", () => { stop(); show(+slider.value); });
  play.addEventListener("click", () => {
    if (timer) return stop();
    if (+slider.value === last) show(0);
    play.textContent = "Pause";
    timer = setInterval(() => { show(+slider.value + 1); if (+slider.value === last) stop(); }, 120);
  });
  bar.hidden = false;
  show(+slider.value);
})(document.currentScript.closest(".flow-path"));
