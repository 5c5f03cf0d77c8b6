// The curve of step times on a job's page, with the times of faults shaded.
"use strict";

(function () {
  const element = document.getElementById("step-chart");
  if (!element) return;
  const data = JSON.parse(document.getElementById("step-data").textContent);
  const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);
  let plot = null;

  function shade(drawn) {
    const { ctx, bbox } = drawn;
    ctx.save();
    ctx.fillStyle = colour("--bad-back");
    for (const [from, to] of data.faults) {
      const left = Math.max(drawn.valToPos(from, "x", true), bbox.left);
      const right = Math.min(drawn.valToPos(to, "x", true), bbox.left + bbox.width);
      if (right > left) ctx.fillRect(left, bbox.top, right - left, bbox.height);
    }
    ctx.restore();
  }

  function draw() {
    if (plot) plot.destroy();
    element.replaceChildren();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    const options = {
      width: element.clientWidth,
      height: element.clientHeight - 30,
      tzDate: (ts) => uPlot.tzDate(new Date(ts * 1000), "Etc/UTC"),
      scales: { y: { range: (_, least, most) => [0, most * 1.1] } },
      axes: [{ ...axis, values: (_, marks) => marks.map(clock) }, { ...axis, size: 60, values: (_, marks) => marks.map((mark) => `${mark} s`) }],
      series: [
        { label: "time", value: (_, seconds) => (seconds == null ? "–" : clock(seconds)) },
        { label: "step", stroke: colour("--link"), width: 1.6, points: { show: data.s.length < 60 }, value: (_, value) => (value == null ? "–" : `${value.toFixed(3)} s`) },
      ],
      hooks: { drawClear: [shade] },
    };
    plot = new uPlot(options, [data.s, data.step_s], element);
  }

  draw();
  document.addEventListener("themechange", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", () => plot.setSize({ width: element.clientWidth, height: element.clientHeight - 30 }));
})();
