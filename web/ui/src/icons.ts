import { svg } from "./dom";

// Icons: line drawings on a grid of 16 in the colour of the surrounding text.
const paths = {
  plus: "M8 3v10M3 8h10",
  close: "M4 4l8 8M12 4l-8 8",
  terminal: "M2.5 3.5h11v9h-11zM5 6.5l2 1.75L5 10M8.5 10.5h2.5",
  activity: "M2 8h3l2-4.5 2.5 9L11.5 8H14",
  pool: "M2.5 13.5v-5M6.2 13.5v-9M9.8 13.5v-6.5M13.5 13.5v-11",
  nodes: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01M8 5h3M8 11h3",
  search: "M7 2.8a4.2 4.2 0 110 8.4 4.2 4.2 0 010-8.4zM10.2 10.2l3.3 3.3",
  download: "M8 2.5v7.5M5 7.5l3 3 3-3M3 13.5h10",
  up: "M8 12.5v-9M4.5 7L8 3.5 11.5 7",
  down: "M8 3.5v9M4.5 9L8 12.5 11.5 9",
  share: "M12 3.2a1.6 1.6 0 110 3.2 1.6 1.6 0 010-3.2zM4 6.4a1.6 1.6 0 110 3.2 1.6 1.6 0 010-3.2zM12 9.6a1.6 1.6 0 110 3.2 1.6 1.6 0 010-3.2zM5.5 7.3l5-1.8M5.5 8.7l5 1.8",
  pencil: "M3 13l.6-2.6 7-7 2 2-7 7zM9.4 4.6l2 2",
  trash: "M3 4.5h10M6.5 4.5v-2h3v2M4.5 4.5l.6 9h5.8l.6-9",
  gear: "M8 5.6a2.4 2.4 0 110 4.8 2.4 2.4 0 010-4.8zM8 1.8v2M8 12.2v2M1.8 8h2M12.2 8h2M3.6 3.6L5 5M11 11l1.4 1.4M12.4 3.6L11 5M5 11l-1.4 1.4",
  keyboard: "M1.5 4.5h13v7h-13zM4 7h.01M6.7 7h.01M9.3 7h.01M12 7h.01M5 9.3h6",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  chevron: "M6 4l4 4-4 4",
  record: "M2.5 3.5h11v9h-11zM8 6a2 2 0 110 4 2 2 0 010-4z",
  play: "M5 3.5l7 4.5-7 4.5z",
  stop: "M5.5 3.5v9M10.5 3.5v9",
};

export type IconName = keyof typeof paths;

export function icon(name: IconName): SVGElement {
  return svg(
    "svg",
    { viewBox: "0 0 16 16", width: 16, height: 16, fill: "none", stroke: "currentColor", "stroke-width": 1.4, "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" },
    svg("path", { d: paths[name] }),
  );
}
