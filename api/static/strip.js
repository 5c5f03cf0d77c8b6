// Arrival lag by rank and time: one pixel a cell, stretched to the page; a late rank is a dark row.
"use strict";

(function () {
  const canvas = document.getElementById("strip");
  if (!canvas) return;
  const data = JSON.parse(document.getElementById("strip-data").textContent);
  const rows = data.names.length, columns = data.s.length;
  const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);
  const top = Math.max(find(0.999), 4 * find(0.5)) || 1; // one hiccup bleaches nothing, and noise stays pale
  let cursor = [0, 0];

  function find(share) {
    const known = data.lag_ms.flat().filter((lag) => lag !== null).sort((a, b) => a - b);
    return known.length ? known[Math.floor((known.length - 1) * share)] : 0;
  }

  function parse(text) {
    const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    probe.fillStyle = text;
    probe.fillRect(0, 0, 1, 1);
    return probe.getImageData(0, 0, 1, 1).data;
  }

  function draw() {
    const scale = [0, 1, 2, 3, 4].map((number) => parse(colour(`--heat-${number}`)));
    const nothing = parse(colour("--card"));
    canvas.width = columns;
    canvas.height = rows;
    const picture = new ImageData(columns, rows);
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const lag = data.lag_ms[row][column];
        const at = 4 * (row * columns + column);
        const position = Math.min((lag || 0) / top, 1) * 4;
        const low = Math.min(Math.floor(position), 3);
        for (let part = 0; part < 3; part++) {
          picture.data[at + part] = lag === null ? nothing[part] : scale[low][part] + (position - low) * (scale[low + 1][part] - scale[low][part]);
        }
        picture.data[at + 3] = 255;
      }
    }
    canvas.getContext("2d").putImageData(picture, 0, 0);
    canvas.dataset.drawn = rows * columns;
  }

  function read() {
    const [row, column] = cursor;
    const lag = data.lag_ms[row][column];
    const text = lag === null ? "nothing is known" : `${lag.toFixed(2)} ms after the first`;
    document.getElementById("strip-reading").textContent = `${data.names[row]}, ${clock(data.s[column])}: ${text}`;
  }

  function point(event) {
    const box = canvas.getBoundingClientRect();
    const at = (offset, length, count) => Math.min(Math.max(Math.floor(offset / length * count), 0), count - 1);
    cursor = [at(event.clientY - box.top, box.height, rows), at(event.clientX - box.left, box.width, columns)];
    read();
  }

  function step(event) {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    cursor = [Math.min(Math.max(cursor[0] + move[0], 0), rows - 1), Math.min(Math.max(cursor[1] + move[1], 0), columns - 1)];
    read();
  }

  draw();
  document.getElementById("strip-from").textContent = clock(data.s[0]);
  document.getElementById("strip-to").textContent = clock(data.s[columns - 1]);
  document.getElementById("strip-most").textContent = `${top.toFixed(top < 10 ? 2 : 0)} ms and later`;
  canvas.addEventListener("mousemove", point);
  canvas.addEventListener("keydown", step);
  document.addEventListener("themechange", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
