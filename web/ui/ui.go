// Package ui is the page that browsers get: its files, embedded, and the handlers that serve them.
package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
)

//go:generate go run ./bundle

//go:embed index.html dist/app.js dist/app.css icon.svg
var files embed.FS

// asset is one file as it goes out. Its address has its hash in it, so that browsers keep it for ever and never have an old one.
type asset struct {
	kind  string
	plain []byte
	gzip  func() []byte // made once
}

// load gives the assets by address, and the page with their addresses in it. When they are first wanted: this package is part of every process of
// trl, and most have no page.
var load = sync.OnceValues(func() (byAddress map[string]asset, page string) {
	byAddress = map[string]asset{}
	var addresses []string
	for name, kind := range map[string]string{
		"dist/app.js":  "text/javascript; charset=utf-8",
		"dist/app.css": "text/css; charset=utf-8",
		"icon.svg":     "image/svg+xml",
	} {
		text := read(name)
		sum := sha256.Sum256(text)
		address := "/ui/" + hex.EncodeToString(sum[:6]) + "/" + path.Base(name)
		addresses = append(addresses, "{"+path.Base(name)+"}", address)
		byAddress[address] = asset{kind, text, sync.OnceValue(func() []byte { return gzipped(text) })}
	}
	return byAddress, strings.NewReplacer(addresses...).Replace(string(read("index.html")))
})

func read(name string) []byte {
	text, err := files.ReadFile(name)
	if err != nil {
		panic(err) // embedded: it is there
	}
	return text
}

func gzipped(text []byte) []byte {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is valid
	z.Write(text)                                         // a Buffer takes everything
	z.Close()
	return b.Bytes()
}

// ServePage answers with the page. Everything it may load is ours: no script but the one file, no style but the one file and what
// xterm.js makes with this answer's nonce, no connection but to this server.
func ServePage(w http.ResponseWriter, nonce string) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-"+nonce+
		"'; connect-src 'self'; img-src 'self'; manifest-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'")
	h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), clipboard-read=(self), clipboard-write=(self)")
	_, page := load()
	_, _ = io.WriteString(w, strings.ReplaceAll(page, "{NONCE}", nonce))
}

// ServeAsset answers with a file of the page.
func ServeAsset(w http.ResponseWriter, r *http.Request) {
	assets, _ := load()
	a, ok := assets[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", a.kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Vary", "Accept-Encoding")
	body := a.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body = a.gzip()
	}
	h.Set("Content-Length", fmt.Sprint(len(body)))
	w.Write(body)
}
