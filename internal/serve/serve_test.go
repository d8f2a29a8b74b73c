package serve

import "testing"

func TestLocalURL(t *testing.T) {
	for _, c := range []struct{ url, listen, want string }{
		{"http://0.0.0.0:80", "0.0.0.0:80", "http://127.0.0.1:80"},
		{"https://[::]:443", "[::]:443", "https://[::1]:443"},
		{"http://[::]:80", ":80", "http://127.0.0.1:80"},
		{"http://[::]:80", "0.0.0.0:80", "http://127.0.0.1:80"}, // a dual-stack socket shows the IPv6 address
		{"http://127.0.0.1:1", "127.0.0.1:1", "http://127.0.0.1:1"},
	} {
		if got := localURL(c.url, c.listen); got != c.want {
			t.Errorf("%s, --listen %s: %s", c.url, c.listen, got)
		}
	}
}
