package house

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// document is a Markdown file, or the text cells of a notebook.
type document struct{ name, text string }

func documents(t *testing.T) []document {
	t.Helper()
	var all []document
	for _, name := range tracked(t, "*.md", "*.ipynb") {
		text := read(t, name)
		if filepath.Ext(name) == ".ipynb" {
			text = prose(t, name, text)
		}
		all = append(all, document{name, text})
	}
	return all
}

// prose is the text of a notebook's Markdown cells.
func prose(t *testing.T, name, file string) string {
	t.Helper()
	var notebook struct {
		Cells []struct {
			Type   string `json:"cell_type"`
			Source json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(file), &notebook); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var all []string
	for _, cell := range notebook.Cells {
		if cell.Type == "markdown" {
			all = append(all, lines(cell.Source))
		}
	}
	return strings.Join(all, "\n\n")
}

// block is a block of code in a document.
type block struct {
	language string // indented if it has none
	line     int    // of its first line
	lines    []string
}

// indented is the language of a block that is indented by four spaces.
const indented = "indented"

// blocks splits a document into its blocks of code and the rest, where it replaces them by empty lines.
func (d document) blocks() (code []block, rest []string) {
	fence, open := "", false // open: inside an indented block
	previous := ""
	for i, line := range strings.Split(d.text, "\n") {
		trimmed := strings.TrimSpace(line)
		inside := true
		switch {
		case fence != "" && trimmed == fence:
			fence = ""
		case fence != "":
			last := &code[len(code)-1]
			last.lines = append(last.lines, line)
		case strings.HasPrefix(trimmed, "```") && !strings.HasPrefix(trimmed, "````"):
			fence = "```"
			code = append(code, block{language: strings.TrimPrefix(trimmed, "```"), line: i + 2})
		case strings.HasPrefix(line, "    ") && (open || strings.TrimSpace(previous) == ""):
			if !open {
				code = append(code, block{language: indented, line: i + 1})
			}
			last := &code[len(code)-1]
			last.lines = append(last.lines, line)
			open = true
		default:
			inside = open && trimmed == ""
			open = inside
		}
		if inside {
			line = ""
		}
		rest = append(rest, line)
		previous = line
	}
	return code, rest
}
