package kv

import (
	"context"
	"errors"
	"time"
)

// ensure makes the bucket after nobody answered. Its error says why another attempt is needed.
func (b *Bucket) ensure(ctx context.Context) error {
	existed, err := b.make(ctx)
	if err == nil && existed {
		err = again("the bucket exists, but has no leader")
	}
	return err
}

// Make makes the bucket if it does not exist. The other calls make it too if nobody answers them; but where somebody subscribes to a Subject, a
// write to a bucket that does not exist is silent.
func (b *Bucket) Make(ctx context.Context) error {
	return b.retry(ctx, func(ctx context.Context) error {
		_, err := b.make(ctx)
		return err
	})
}

// make makes the bucket with three replicas if there are three servers, otherwise with one. Nobody tells a client how many servers there are; the
// servers refuse replicas for which they are too few.
func (b *Bucket) make(ctx context.Context) (existed bool, err error) {
	if _, err := b.info(ctx); codeOf(err) != codeNoStream {
		return true, err
	}
	err = b.create(ctx, maxReplicas)
	if tooFewServers(err) {
		err = b.create(ctx, 1)
	}
	return false, err
}

func tooFewServers(err error) bool {
	return codeOf(err) == codeNoReplicas || codeOf(err) == codeNoPeers
}

func (b *Bucket) create(ctx context.Context, replicas int) error {
	storage := "file"
	if b.Memory {
		storage = "memory"
	}
	err := b.api(ctx, "STREAM.CREATE."+b.stream(), map[string]any{
		"name":                 b.stream(),
		"subjects":             []string{b.subject(">")},
		"retention":            "limits",
		"storage":              storage,
		"num_replicas":         replicas,
		"max_consumers":        -1,
		"max_msgs":             -1,
		"max_bytes":            -1,
		"max_msg_size":         64 << 10,
		"max_msgs_per_subject": 1,
		"max_age":              b.TTL,
		"duplicate_window":     min(b.TTL, 2*time.Minute),
		"discard":              "new",
		"deny_delete":          true,
		"allow_rollup_hdrs":    true,
		"allow_direct":         true,
		"allow_msg_ttl":        true,
	}, nil)
	if codeOf(err) == codeNameInUse { // another node was faster
		return nil
	}
	return err
}

// info returns the configuration that the servers have for the bucket.
func (b *Bucket) info(ctx context.Context) (config map[string]any, err error) {
	var answer struct {
		Config map[string]any `json:"config"`
	}
	err = b.api(ctx, "STREAM.INFO."+b.stream(), struct{}{}, &answer)
	return answer.Config, err
}

// Raise gives the bucket three replicas if it has fewer and the servers suffice. It makes the bucket if there is none. It returns the number of
// replicas.
func (b *Bucket) Raise(ctx context.Context) (replicas int, err error) {
	err = b.retry(ctx, func(ctx context.Context) error {
		config, err := b.info(ctx)
		if codeOf(err) == codeNoStream {
			if err = b.ensure(ctx); err == nil {
				config, err = b.info(ctx)
			}
		}
		if err != nil {
			return err
		}
		n, _ := config["num_replicas"].(float64)
		if replicas = int(n); replicas >= maxReplicas {
			return nil
		}
		config["num_replicas"] = maxReplicas
		err = b.api(ctx, "STREAM.UPDATE."+b.stream(), config, nil)
		if err == nil {
			replicas = maxReplicas
		} else if _, refused := errors.AsType[*apiError](err); refused {
			err = nil // they are still too few
		}
		return err
	})
	return replicas, err
}
