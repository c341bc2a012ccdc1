package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/textproto"
	"strconv"
)

// message is a request, a response or a notification of the Language Server Protocol, which is JSON-RPC with a header.
type message struct {
	ID     json.RawMessage `json:"id,omitempty"`     // none in a notification
	Method string          `json:"method,omitempty"` // none in a response
	Params json.RawMessage `json:"params,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`

	text []byte // all of it, as it came
}

// maxMessage is the most bytes of a message. Completions of large packages are below a megabyte.
const maxMessage = 1 << 28

// receive reads the next message.
func receive(r *bufio.Reader) (message, error) {
	header, err := textproto.NewReader(r).ReadMIMEHeader()
	if err != nil {
		return message{}, err
	}
	length := header.Get("Content-Length")
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n > maxMessage {
		return message{}, fmt.Errorf("a message with Content-Length %q", length)
	}
	m := message{text: make([]byte, n)}
	if _, err := io.ReadFull(r, m.text); err != nil {
		return message{}, err
	}
	return m, json.Unmarshal(m.text, &m)
}

// send writes a message.
func send(w io.Writer, text []byte) error {
	_, err := w.Write(append(fmt.Appendf(nil, "Content-Length: %d\r\n\r\n", len(text)), text...))
	return err
}

// object is a JSON object.
type object map[string]any

// compose returns the text of a message.
func compose(fields object) []byte {
	fields["jsonrpc"] = "2.0"
	text, err := json.Marshal(fields)
	if err != nil {
		panic(err) // all values come from here or from JSON
	}
	return text
}

func request(id json.RawMessage, method string, params any) []byte {
	return compose(object{"id": id, "method": method, "params": params})
}

func notification(method string, params any) []byte {
	return compose(object{"method": method, "params": params})
}

func response(id json.RawMessage, result any) []byte {
	return compose(object{"id": id, "result": result})
}

// requestFailed is the protocol's code for a request that was right and could not be answered.
const requestFailed = -32803

func failure(id json.RawMessage, err error) []byte {
	return compose(object{"id": id, "error": object{"code": requestFailed, "message": err.Error()}})
}
