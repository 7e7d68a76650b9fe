// A canvas to draw on: black ink on nothing. After each stroke the drawing is sent to the server.
const canvas = element.querySelector("canvas");
const pen = canvas.getContext("2d");
let drawing = false;
const place = (event) => {
  const box = canvas.getBoundingClientRect();
  return [(event.clientX - box.left) * canvas.width / box.width, (event.clientY - box.top) * canvas.height / box.height];
};
canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  drawing = true;
  Object.assign(pen, { lineWidth: canvas.width / 12, lineCap: "round", lineJoin: "round" });
  pen.beginPath();
  pen.moveTo(...place(event));
  pen.lineTo(...place(event));
  pen.stroke();
});
canvas.addEventListener("pointermove", (event) => {
  if (!drawing) return;
  pen.lineTo(...place(event));
  pen.stroke();
});
const end = () => {
  if (!drawing) return;
  drawing = false;
  trigger("input", { drawing: canvas.toDataURL("image/png") });
};
canvas.addEventListener("pointerup", end);
canvas.addEventListener("pointercancel", end);
element.querySelector("button").addEventListener("click", () => {
  pen.clearRect(0, 0, canvas.width, canvas.height);
  trigger("input", { drawing: null });
});
