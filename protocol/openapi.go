package protocol

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"
)

// node is a JSON object of a document.
type node = map[string]any

// OpenAPI returns the OpenAPI 3.1 document of the routes for programs, generated from the Go types once.
func OpenAPI() []byte { return openAPI() }

var openAPI = sync.OnceValue(func() []byte {
	schemas := node{
		"Failure": failureSchema(),
		"Event":   eventSchema(),
	}
	var requests, answers []any
	mapping := node{}
	for _, m := range methods {
		name := m.Name + ".request"
		required := []string{"method"}
		params := schemaOf(m.Params, true)
		if len(params.Required) > 0 {
			required = append(required, "params")
		}
		schemas[name] = node{
			"type": "object", "description": m.About, "required": required, "additionalProperties": false,
			"properties": node{"id": node{"type": []string{"string", "number"}}, "method": node{"const": m.Name}, "params": params},
		}
		schemas[m.Name+".answer"] = node{
			"type": "object", "required": []string{"ok", "data"},
			"properties": node{"id": node{"type": []string{"string", "number"}}, "ok": node{"const": true}, "data": schemaOf(m.Result, false)},
		}
		requests, answers = append(requests, ref("schemas", name)), append(answers, ref("schemas", m.Name+".answer"))
		mapping[m.Name] = "#/components/schemas/" + name
	}
	schemas["Request"] = node{"oneOf": requests, "discriminator": node{"propertyName": "method", "mapping": mapping}}
	schemas["Answer"] = node{"description": "The answer to a request that was carried out: the schema METHOD.answer.", "anyOf": answers}
	schemas["Line"] = node{"description": "One line of a response that is followed: the answer, then events. Blank lines come between them.", "anyOf": []any{ref("schemas", "Answer"), ref("schemas", "Event")}}
	responses := node{"200": node{
		"description": "The request was carried out. A command that fails is a result, too.",
		"content": node{
			"application/json":     node{"schema": ref("schemas", "Answer")},
			"application/x-ndjson": node{"schema": ref("schemas", "Line")},
		},
	}}
	for status, of := range codesByStatus() {
		responses[strconv.Itoa(status)] = node{
			"description": fmt.Sprintf("%s: %s.", http.StatusText(status), strings.Join(of, ", ")),
			"content":     node{"application/json": node{"schema": ref("schemas", "Failure")}},
		}
	}
	plain := func(about string) node {
		return node{"description": about, "content": node{"text/plain": node{"schema": node{"type": "string"}}}}
	}
	file := func(about, kind string) node {
		return node{"description": about, "content": node{kind: node{"schema": node{}}}}
	}
	get := func(id, about string, responses node, more ...node) node {
		op := node{"operationId": id, "summary": about, "responses": responses}
		for _, m := range more {
			maps.Copy(op, m)
		}
		return node{"get": op}
	}
	open := node{"security": []any{}}
	refused := plain("The credential is missing, wrong, revoked or expired.")
	return document(node{
		"openapi": "3.1.0",
		"info": node{
			"title": "trl: persistent shells over HTTP", "version": Version, "license": node{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "Every method of the protocol that needs no connection, as one HTTP request. PROTOCOL.md says what the methods do; /v1/asyncapi.json describes the WebSocket.",
		},
		"servers":  []any{node{"url": "/"}},
		"security": []any{node{"bearer": []any{}}, node{"certificate": []any{}}},
		"paths": node{
			"/v1/rpc": node{"post": node{
				"operationId": "rpc", "summary": "Carries out one request.",
				"description": "With Accept: application/x-ndjson, the answer to exec.stream, exec.attach and process.logs with follow is the first line, and its events follow.",
				"requestBody": node{"required": true, "content": node{"application/json": node{"schema": ref("schemas", "Request")}}},
				"responses":   responses,
			}},
			"/v1/tickets": node{"post": node{
				"operationId": "ticket", "summary": "Makes a ticket, with which a page opens one WebSocket.",
				"responses": node{
					"200": node{"description": "The ticket.", "content": node{"application/json": node{"schema": node{
						"type": "object", "required": []string{"ticket", "expires_in_s"},
						"properties": node{"ticket": node{"type": "string"}, "expires_in_s": node{"type": "number"}}}}}},
					"401": refused, "429": plain("Too many tickets are unused, or too many wrong credentials came from this address."),
				},
			}},
			"/v1/recordings/{id}": get("recording", "Downloads a recording in asciicast format.", node{
				"200": file("The recording.", "application/x-asciicast"), "401": refused, "404": plain("There is no such recording."),
				"503": plain("The recording is on another node of the cluster, which cannot be reached now."),
			}, node{"parameters": []any{
				node{"name": "id", "in": "path", "required": true, "schema": node{"type": "string"}},
				node{"name": "format", "in": "query", "schema": node{"enum": []string{"v2", "v3"}, "default": "v3"}},
			}}),
			"/v1/schema":        get("schema", "The JSON Schema of every message.", node{"200": file("The schema.", "application/schema+json")}, open),
			"/v1/openapi.json":  get("openapi", "This document.", node{"200": file("The document.", "application/json")}, open),
			"/v1/asyncapi.json": get("asyncapi", "The AsyncAPI document of the WebSocket.", node{"200": file("The document.", "application/json")}, open),
			"/healthz":          get("health", "Whether the gateway answers.", node{"200": plain("It does.")}, open),
			"/readyz":           get("ready", "Whether the gateway accepts sessions.", node{"200": plain("It does."), "503": plain("It does not; the text says why.")}, open),
		},
		"components": node{
			"schemas": schemas,
			"securitySchemes": node{
				"bearer":      node{"type": "http", "scheme": "bearer", "description": "A token, a JWT, or the token of a share link."},
				"certificate": node{"type": "mutualTLS", "description": "A client certificate, where the gateway accepts them."},
			},
		},
	})
})

// AsyncAPI returns the AsyncAPI 3.0 document of the WebSocket, generated from the Go types once.
func AsyncAPI() []byte { return asyncAPI() }

var asyncAPI = sync.OnceValue(func() []byte {
	id := node{"location": "$message.payload#/id"}
	messages := node{"failure": node{
		"name": "failure", "summary": "The answer to a request that was not carried out.", "payload": withID(failureSchema()), "correlationId": id,
	}}
	channel := func(name string) node { return node{"$ref": "#/channels/connection/messages/" + name} }
	operations := node{}
	for _, m := range methods {
		messages[m.Name] = node{
			"name": m.Name, "summary": m.About, "correlationId": id,
			"payload": node{
				"type": "object", "required": []string{"id", "method"}, "additionalProperties": false,
				"properties": node{"id": node{"type": []string{"string", "number"}}, "method": node{"const": m.Name}, "params": schemaOf(m.Params, true)},
			},
		}
		messages[m.Name+".answer"] = node{
			"name": m.Name + ".answer", "summary": "The answer to " + m.Name + ".", "correlationId": id,
			"payload": node{
				"type": "object", "required": []string{"id", "ok", "data"},
				"properties": node{"id": node{"type": []string{"string", "number"}}, "ok": node{"const": true}, "data": schemaOf(m.Result, false)},
			},
		}
		operations[m.Name] = node{
			"action": "receive", "summary": m.About, "channel": node{"$ref": "#/channels/connection"}, "messages": []any{channel(m.Name)},
			"reply": node{"channel": node{"$ref": "#/channels/connection"}, "messages": []any{channel(m.Name + ".answer"), channel("failure")}},
		}
	}
	for _, e := range events {
		name := e.Name + ".event" // exec.started and others could be names of methods
		messages[name] = node{"name": e.Name, "summary": e.About, "payload": node{
			"type": "object", "required": []string{"event", "data"},
			"properties": node{"event": node{"const": e.Name}, "data": schemaOf(e.Data, false)},
		}}
		operations[name] = node{"action": "send", "summary": e.About, "channel": node{"$ref": "#/channels/connection"}, "messages": []any{channel(name)}}
	}
	all := node{}
	for name := range messages {
		all[name] = ref("messages", name)
	}
	return document(node{
		"asyncapi": "3.0.0",
		"info": node{
			"title": "trl: persistent shells over a WebSocket", "version": Version, "license": node{"name": "Apache-2.0"},
			"description": "Each text frame is one message. The subprotocol is " + Version + ". PROTOCOL.md is the reference.",
		},
		"defaultContentType": "application/json",
		"servers": node{"gateway": node{
			"host": "127.0.0.1:7681", "protocol": "ws", "security": []any{node{"$ref": "#/components/securitySchemes/bearer"}},
		}},
		"channels": node{"connection": node{
			"address": "/v1/ws", "description": "One connection of a client.", "messages": all,
			"bindings": node{"ws": node{"method": "GET", "headers": node{"type": "object", "properties": node{"Sec-WebSocket-Protocol": node{"type": "string", "const": Version}}}}},
		}},
		"operations": operations,
		"components": node{
			"messages":        messages,
			"securitySchemes": node{"bearer": node{"type": "http", "scheme": "bearer"}},
		},
	})
})

func document(doc node) []byte {
	text, err := json.Marshal(doc, json.Deterministic(true), jsontext.WithIndent(" "))
	if err != nil {
		panic(err) // the types are ours and a test calls this
	}
	return append(text, '\n')
}

func ref(kind, name string) node { return node{"$ref": "#/components/" + kind + "/" + name} }

// failureSchema is the schema of an answer that is an error.
func failureSchema() node {
	return node{
		"description": "The request was not carried out.", "type": "object", "required": []string{"ok", "error"},
		"properties": node{"id": node{"type": []string{"null", "string", "number"}}, "ok": node{"const": false}, "error": errorSchema()},
	}
}

func withID(schema node) node {
	schema["required"] = append([]string{"id"}, schema["required"].([]string)...)
	return schema
}

func errorSchema() *jsonschema.Schema {
	s := envelope()["failure"].Properties["error"]
	about := make([]string, len(codes))
	for i, c := range codes {
		about[i] = string(c.Code) + ": " + c.Meaning
	}
	s.Properties["code"].Description = "A later server may have more. " + strings.Join(about, " ")
	return s
}

func eventSchema() node {
	var all []any
	for _, e := range events {
		all = append(all, node{
			"description": e.About, "type": "object", "required": []string{"event", "data"},
			"properties": node{"event": node{"const": e.Name}, "data": schemaOf(e.Data, false)},
		})
	}
	return node{"anyOf": all}
}

// codesByStatus lists the codes of each HTTP status.
func codesByStatus() map[int][]string {
	of := map[int][]string{}
	for _, c := range codes {
		of[c.Status] = append(of[c.Status], string(c.Code))
	}
	for _, list := range of {
		slices.Sort(list)
	}
	return of
}
