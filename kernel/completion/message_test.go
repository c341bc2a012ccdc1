package main

import (
	"bufio"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/shardbook/shardbook/internal/must"
)

func TestMessages(t *testing.T) {
	var stream strings.Builder
	must.Do(t, send(&stream, []byte(`{"id":1,"method":"a"}`)))
	must.Do(t, send(&stream, []byte(`{"id":"x","error":{}}`)))
	r := bufio.NewReader(iotest.OneByteReader(strings.NewReader(stream.String())))
	if m := must.Get(receive(r))(t); string(m.ID) != "1" || m.Method != "a" || m.Error != nil {
		t.Errorf("the first message is %+v", m)
	}
	if m := must.Get(receive(r))(t); string(m.ID) != `"x"` || string(m.text) != `{"id":"x","error":{}}` {
		t.Errorf("the second message is %+v", m)
	}
	if _, err := receive(r); err != io.EOF {
		t.Errorf("after the last message: %v", err)
	}
}

func TestBrokenMessages(t *testing.T) {
	for text, why := range map[string]string{
		"Content-Length: 5\r\n\r\n{}":              "EOF",
		"Content-Length: -1\r\n\r\n":               `"-1"`,
		"Content-Length: 9999999999\r\n\r\n":       "9999999999",
		"Content-Type: a\r\n\r\n{}":                `""`,
		"panic: runtime error\n\n":                 `""`,
		"Content-Length: 5\r\n\r\n{\"id\"":         "JSON",
		"Content-Length: 12\r\n\r\n{\"method\":1}": "method",
	} {
		_, err := receive(bufio.NewReader(strings.NewReader(text)))
		must.Refuse(t, text, err, why)
	}
}
