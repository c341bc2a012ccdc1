package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Methods of the protocol.
const (
	didOpen   = "textDocument/didOpen"
	didChange = "textDocument/didChange"
	didClose  = "textDocument/didClose"
)

// proxy is gopls for one client. Only run's goroutine uses its fields.
type proxy struct {
	settings   settings
	client     io.ReadWriter
	initialize message // the client's request
	documents  documents

	gopls   *process             // nil while it does not run
	pending map[string]time.Time // when requests came that gopls has not answered, by ID
	now     time.Time            // of the last tick
	asked   time.Time            // of the last request
}

func newProxy(s settings, client io.ReadWriter) *proxy {
	return &proxy{settings: s, client: client, documents: documents{open: map[string]document{}},
		pending: map[string]time.Time{}, now: time.Now()}
}

// run serves the client until it closes the connection. The ticks are its only clock: at each it checks the limits.
func (p *proxy) run(ticks <-chan time.Time) {
	messages := make(chan message)
	go func() {
		defer close(messages)
		r := bufio.NewReader(p.client)
		for {
			m, err := receive(r)
			if err != nil {
				return
			}
			messages <- m
		}
	}()
	defer func() { p.stop(errors.New("the client has gone")) }()
	for {
		var answers chan message
		if p.gopls != nil {
			answers = p.gopls.messages
		}
		select {
		case m, ok := <-messages:
			if !ok {
				return
			}
			p.fromClient(m)
		case m, ok := <-answers:
			if ok {
				p.fromGopls(m)
			} else {
				p.stop(fmt.Errorf("gopls ended (%s); the next request starts it again", p.gopls.end))
			}
		case p.now = <-ticks:
			p.check()
		}
	}
}

// fromClient handles a message of GoNB's. Until the first request nothing needs gopls.
func (p *proxy) fromClient(m message) {
	switch m.Method {
	case "initialize":
		p.initialized(m)
	case didOpen, didChange, didClose:
		text, err := p.documents.update(m)
		if err == nil && p.gopls != nil {
			p.tell(text)
		}
	case "shutdown":
		p.stop(errors.New("gopls was told to shut down"))
		p.answer(response(m.ID, nil))
	default:
		// Other notifications are dropped: start initializes gopls, and what a cancelled request loads helps the next.
		if m.ID != nil && m.Method != "" {
			p.request(m)
		}
	}
}

// initialized answers the client's initialize, and makes of it the request that initializes each gopls.
func (p *proxy) initialized(m message) {
	var folders struct {
		WorkspaceFolders []struct {
			URI string `json:"uri"`
		} `json:"workspaceFolders"`
	}
	params := object{}
	if err := errors.Join(json.Unmarshal(m.Params, &folders), json.Unmarshal(m.Params, &params)); err != nil {
		p.answer(failure(m.ID, err))
		return
	}
	if len(folders.WorkspaceFolders) > 0 {
		p.documents.folder = folders.WorkspaceFolders[0].URI
	}
	params["initializationOptions"] = p.settings.options()
	p.initialize = message{ID: m.ID, text: request(m.ID, m.Method, params)}
	p.answer(response(m.ID, object{"capabilities": object{
		"textDocumentSync":   1, // full texts
		"completionProvider": object{}, "hoverProvider": true, "definitionProvider": true,
	}}))
}

// request has gopls answer, and starts it if it does not run.
func (p *proxy) request(m message) {
	p.asked = p.now
	var texts [][]byte
	if p.gopls == nil {
		err := p.settings.err
		if err == nil {
			p.gopls, err = start(p.settings, p.initialize)
		}
		if err != nil {
			p.answer(failure(m.ID, fmt.Errorf("gopls does not start: %w", err)))
			return
		}
		texts = p.documents.all()
	}
	p.pending[string(m.ID)] = p.now
	for _, text := range append(texts, m.text) {
		p.tell(text)
	}
}

// fromGopls passes on answers to requests that wait for them, and notifications.
func (p *proxy) fromGopls(m message) {
	switch {
	case m.ID == nil:
		p.answer(m.text)
	case m.Method != "": // GoNB would not answer
		p.tell(failure(m.ID, fmt.Errorf("the client has no method %s", m.Method)))
	default:
		if _, ok := p.pending[string(m.ID)]; ok {
			delete(p.pending, string(m.ID))
			p.answer(m.text)
		}
	}
}

// check applies the limits.
func (p *proxy) check() {
	if p.gopls == nil {
		return
	}
	for id, asked := range p.pending {
		if p.now.Sub(asked) >= p.settings.answer {
			delete(p.pending, id)
			p.answer(failure(json.RawMessage(id), fmt.Errorf("no answer from gopls within %v: ask again, it may be "+
				"loading packages", p.settings.answer)))
		}
	}
	used, most := p.settings.rss(p.gopls.pid)>>20, int64(2*p.settings.memory)
	switch {
	case used > most:
		p.stop(fmt.Errorf("gopls took %d MiB and was ended at %d: set %s to more than %d", used, most, envMemory,
			p.settings.memory))
	case p.now.Sub(p.asked) >= p.settings.idle:
		p.stop(fmt.Errorf("gopls was ended after %v without a request", p.settings.idle))
	}
}

// tell sends gopls a message, or ends it if it does not read.
func (p *proxy) tell(text []byte) {
	if p.gopls != nil && !p.gopls.send(text) {
		p.stop(errors.New("gopls did not read its messages and was ended; the next request starts it again"))
	}
}

// answer sends the client a message. If that fails, the client has gone, which run sees.
func (p *proxy) answer(text []byte) { _ = send(p.client, text) }

// stop ends gopls, and says why to whoever waits for an answer.
func (p *proxy) stop(why error) {
	if p.gopls != nil {
		p.gopls.stop()
		p.gopls = nil
	}
	for id := range p.pending {
		delete(p.pending, id)
		p.answer(failure(json.RawMessage(id), why))
	}
}
