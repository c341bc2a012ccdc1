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
		all = append(all, documentOf(t, name))
	}
	return all
}

func documentOf(t *testing.T, name string) document {
	t.Helper()
	if filepath.Ext(name) != ".ipynb" {
		return document{name, read(t, name)}
	}
	var prose []string
	for _, cell := range cells(t, name) {
		if cell.Type == "markdown" {
			prose = append(prose, lines(cell.Source))
		}
	}
	return document{name, strings.Join(prose, "\n\n")}
}

// cell is a cell of a notebook's file.
type cell struct {
	Type    string `json:"cell_type"`
	Source  json.RawMessage
	Outputs []struct{ Data map[string]json.RawMessage }
}

// cells are the cells of a notebook.
func cells(t *testing.T, name string) []cell {
	t.Helper()
	var notebook struct{ Cells []cell }
	if err := json.Unmarshal([]byte(read(t, name)), &notebook); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return notebook.Cells
}

// lines is a text that a notebook has as one string or as a list.
func lines(data json.RawMessage) string {
	var text string
	var several []string
	if json.Unmarshal(data, &several) == nil {
		return strings.Join(several, "")
	}
	json.Unmarshal(data, &text)
	return text
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
