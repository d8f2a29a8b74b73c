package rig

import (
	"encoding/base64"
	"math"
)

// Object is a JSON object.
type Object map[string]any

func (o Object) Str(key string) string { s, _ := o[key].(string); return s }

func (o Object) Yes(key string) bool { b, _ := o[key].(bool); return b }

func (o Object) Has(key string) bool { _, ok := o[key]; return ok }

// Num returns math.MinInt if there is no such number, because a missing exit code must not look like 0.
func (o Object) Num(key string) int {
	f, ok := o[key].(float64)
	if !ok {
		return math.MinInt
	}
	return int(f)
}

func (o Object) Obj(key string) Object { m, _ := o[key].(map[string]any); return m }

// Objs returns a list of objects, Ints a list of numbers.
func (o Object) Objs(key string) (all []Object) {
	list, _ := o[key].([]any)
	for _, e := range list {
		m, _ := e.(map[string]any)
		all = append(all, m)
	}
	return all
}

func (o Object) Ints(key string) (all []int) {
	list, _ := o[key].([]any)
	for _, e := range list {
		f, _ := e.(float64)
		all = append(all, int(f))
	}
	return all
}

// Text decodes bytes that are sent as text: Text("stdout", "stdout_encoding"), Text("data", "encoding").
func (o Object) Text(key, encoding string) string {
	if o.Str(encoding) == "base64" {
		b, err := base64.StdEncoding.DecodeString(o.Str(key))
		if err != nil {
			return "not base64: " + o.Str(key)
		}
		return string(b)
	}
	return o.Str(key)
}

func (o Object) Stdout() string { return o.Text("stdout", "stdout_encoding") }

func (o Object) Stderr() string { return o.Text("stderr", "stderr_encoding") }

// Frame is any message from the server.
type Frame struct {
	ID    any
	OK    bool
	Data  Object
	Error *struct {
		Code, Message string
		Details       Object
	}
	Event string
	Size  int `json:"-"` // of the message
}

// Code is the refusal's, "" for a success.
func (f *Frame) Code() string {
	if f.Error == nil {
		return ""
	}
	return f.Error.Code
}

// With is the union of objects; later ones win.
func With(all ...Object) Object {
	o := Object{}
	for _, m := range all {
		for k, v := range m {
			o[k] = v
		}
	}
	return o
}
