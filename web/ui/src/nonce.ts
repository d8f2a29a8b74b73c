// xterm.js makes <style> elements for what depends on its size and colours. The page's policy takes them with its nonce only; the program
// that bundles us has xterm.js ask here for them.
const nonce = document.querySelector<HTMLScriptElement>("script[nonce]")?.nonce ?? "";

export {};

declare global {
  var trlStyle: (document: Document) => HTMLStyleElement;
}

globalThis.trlStyle = (document) => {
  const style = document.createElement("style");
  style.nonce = nonce;
  return style;
};
