// The delay matrix as a heat map that stays readable at a thousand ranks: cells never get smaller than they can be seen.
"use strict";

(function () {
  const element = document.getElementById("matrix-chart");
  if (!element) return;
  const data = JSON.parse(document.getElementById("matrix-data").textContent);
  const size = data.names.length;
  const smallest = 3; // pixels of a cell
  const most = 30000; // cells that are drawn: the slowest of them, where there are more
  const limits = [1.15, 1.5, 2.5]; // times the usual delay, as in the table of levels on the server
  const labels = 30; // names along an axis that are still read
  const letter = 5.8; // pixels of a letter of them
  let chart = null;
  let step = stepFor(size); // every which rank is named

  function stepFor(visible) {
    return Math.max(1, Math.ceil(visible / labels));
  }

  function relabel() {
    const zooms = chart.getOption().dataZoom;
    const visible = Math.max(...zooms.map((zoom) => zoom.endValue - zoom.startValue + 1));
    if (stepFor(visible) === step) return;
    step = stepFor(visible);
    const axisLabel = { interval: (index) => index % step === 0 };
    chart.setOption({ xAxis: { axisLabel }, yAxis: { axisLabel } });
  }

  function level(ratio) {
    return 1 + limits.filter((limit) => ratio >= limit).length;
  }

  function cells() {
    let order = Array.from(data.ms.keys());
    // The slowest come last, so that they are drawn over their neighbours.
    order.sort((a, b) => data.ms[a] - data.ms[b]);
    if (order.length > most) order = order.slice(order.length - most);
    return order.map((at) => [data.dst[at], data.src[at], data.ms[at] / data.usual, data.ms[at]]);
  }

  function options(shown) {
    const heat = [1, 2, 3, 4].map((number) => colour(`--heat-${number}`));
    const ink = colour("--soft");
    const room = Math.min(12 + letter * Math.max(...data.names.map((name) => name.length)), element.clientWidth / 3);
    const axis = {
      type: "category", data: data.names,
      axisLine: { lineStyle: { color: colour("--line") } }, axisTick: { show: false }, splitLine: { show: false },
      axisLabel: { color: ink, fontSize: 10, interval: (index) => index % step === 0 },
    };
    const zoom = { filterMode: "weakFilter", minValueSpan: Math.min(8, size - 1) };
    return {
      animation: false,
      backgroundColor: "transparent",
      grid: { left: room, right: 40, top: 8, bottom: 30 + room * 0.7, backgroundColor: colour("--heat-0"), show: true, borderWidth: 0 },
      xAxis: { ...axis, axisLabel: { ...axis.axisLabel, rotate: 40 } },
      yAxis: { ...axis, inverse: true, axisLabel: { ...axis.axisLabel, width: room - 8, overflow: "truncate" } },
      dataZoom: [
        { ...zoom, type: "inside", xAxisIndex: 0 },
        { ...zoom, type: "inside", yAxisIndex: 0 },
        { ...zoom, type: "slider", xAxisIndex: 0, height: 14, bottom: 4, showDetail: false, brushSelect: false },
        { ...zoom, type: "slider", yAxisIndex: 0, width: 14, right: 8, showDetail: false, brushSelect: false },
      ],
      series: [{
        type: "custom",
        clip: true,
        progressive: 0,
        dimensions: ["to", "from", "ratio", "ms"],
        encode: { x: 0, y: 1 },
        data: shown,
        renderItem(params, api) {
          const [x, y] = api.coord([api.value(0), api.value(1)]);
          const [wide, high] = api.size([1, 1]).map((side) => Math.max(side - (side > 8 ? 1 : 0), smallest));
          const shape = echarts.graphic.clipRectByRect({ x: x - wide / 2, y: y - high / 2, width: wide, height: high }, params.coordSys);
          return shape && { type: "rect", shape, style: { fill: heat[level(api.value(2)) - 1] } };
        },
      }],
    };
  }

  function read(event) {
    const [to, from, ratio, ms] = event.data;
    document.getElementById("matrix-reading").textContent =
      `${data.names[from]} to ${data.names[to]}: ${ms.toFixed(3)} ${data.unit}, ${ratio.toFixed(2)} times the usual`;
  }

  function zoomTo(columns, rows) {
    chart.dispatchAction({
      type: "dataZoom",
      batch: [[0, columns], [1, rows], [2, columns], [3, rows]].map(([index, [from, to]]) => ({ dataZoomIndex: index, startValue: from, endValue: to })),
    });
  }

  function zoomToWorst() {
    let at = 0;
    data.ms.forEach((ms, number) => { if (ms > data.ms[at]) at = number; });
    const near = (centre) => [Math.max(centre - 12, 0), Math.min(centre + 12, size - 1)];
    zoomTo(near(data.dst[at]), near(data.src[at]));
  }

  function draw() {
    const began = performance.now();
    if (chart) chart.dispose();
    element.replaceChildren();
    chart = echarts.init(element, null, { renderer: "canvas" });
    const shown = cells();
    chart.on("finished", () => { element.dataset.drawn = shown.length; element.dataset.ms = element.dataset.ms || Math.round(performance.now() - began); });
    chart.on("mouseover", read);
    chart.on("datazoom", relabel);
    chart.setOption(options(shown));
    if (shown.length < data.ms.length) {
      document.getElementById("matrix-reading").textContent = `The slowest ${shown.length} of ${data.ms.length} pairs are drawn.`;
    }
  }

  draw();
  document.getElementById("matrix-worst").addEventListener("click", zoomToWorst);
  document.getElementById("matrix-all").addEventListener("click", () => zoomTo([0, size - 1], [0, size - 1]));
  document.addEventListener("themechange", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", () => chart.resize());
})();
