package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"trl/client"
	"trl/protocol"
)

// TestAFullGatewayIsNoWrongAddress: the words are the gateway's own.
func TestAFullGatewayIsNoWrongAddress(t *testing.T) {
	for _, flag := range []string{"--max-connections", "--max-connections-per-principal"} {
		o := client.Options{URL: "http://" + startGateway(t, flag, "1").addr}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c, err := client.Dial(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		second, err := client.Dial(ctx, o)
		if err == nil {
			second.Close()
			t.Fatal("let in")
		}
		var (
			e *protocol.Error
			r *refusal
		)
		err = hintDial(err, o)
		if !errors.As(err, &e) || e.Code != protocol.LimitExceeded || !errors.As(err, &r) || !strings.Contains(r.hint, flag) {
			t.Errorf("%s: %v, %+v", flag, err, r)
		}
	}
}
