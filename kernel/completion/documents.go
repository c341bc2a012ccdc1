package main

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// documents are the Go files of GoNB's own folder, by URI, with the text that GoNB sent last.
//
// gopls reads all other files itself, and is told only which have changed. GoNB opens every Go file of the checkout,
// and gopls would keep all packages of open files in memory. GoNB sends only what it has written to disk.
type documents struct {
	folder string // the URI of GoNB's folder
	open   map[string]document
}

type document struct {
	version int
	text    string
}

// change is what the notifications of opened, changed and closed documents have in common.
type change struct {
	TextDocument struct {
		URI     string `json:"uri"`
		Version int    `json:"version"`
		Text    string `json:"text"`
	} `json:"textDocument"`
	ContentChanges []struct {
		Text string `json:"text"`
	} `json:"contentChanges"`
}

// Types of changes of files in the protocol.
const (
	changed = 2
	deleted = 3
)

// update records a notification and returns what gopls is to be told instead, if it runs.
//
// GoNB sends full texts, but with an empty range, so that gopls would insert them.
func (d *documents) update(m message) ([]byte, error) {
	var c change
	if err := json.Unmarshal(m.Params, &c); err != nil {
		return nil, err
	}
	uri, text := c.TextDocument.URI, c.TextDocument.Text
	if !strings.HasPrefix(uri, d.folder+"/") || !strings.HasSuffix(uri, ".go") {
		kind := changed
		if m.Method == didClose {
			kind = deleted
		}
		return notification("workspace/didChangeWatchedFiles",
			object{"changes": []object{{"uri": uri, "type": kind}}}), nil
	}
	if m.Method == didClose {
		delete(d.open, uri)
		return m.text, nil
	}
	if n := len(c.ContentChanges); n > 0 {
		text = c.ContentChanges[n-1].Text
	}
	d.open[uri] = document{c.TextDocument.Version, text}
	if m.Method == didOpen {
		return d.opened(uri), nil
	}
	return notification(didChange, object{
		"textDocument":   object{"uri": uri, "version": c.TextDocument.Version},
		"contentChanges": []object{{"text": text}},
	}), nil
}

// opened is the notification that opens a document with its current text.
func (d *documents) opened(uri string) []byte {
	return notification(didOpen, object{"textDocument": object{
		"uri": uri, "languageId": "go", "version": d.open[uri].version, "text": d.open[uri].text,
	}})
}

// all returns the notifications that open all documents.
func (d *documents) all() [][]byte {
	var texts [][]byte
	for _, uri := range slices.Sorted(maps.Keys(d.open)) {
		texts = append(texts, d.opened(uri))
	}
	return texts
}
