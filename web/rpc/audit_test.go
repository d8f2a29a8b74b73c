package rpc

import "testing"

func TestUnauditedMethodsExist(t *testing.T) {
	for method := range unaudited {
		if h, ok := handlers[method]; !ok || h.access == reads {
			t.Errorf("%s: not one that changes something", method)
		}
	}
}
