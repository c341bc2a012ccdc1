package house

import (
	"fmt"
	"go/scanner"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// avoided are words for which the field has another.
var avoided = []struct {
	pattern, say string
	except       []string // contexts in which the word is right
}{
	{`foretold|foretells?|forecasts?`, "predicted, predict", nil},
	{`(made|computed|computes|compute|make) again|made anew`, "recomputed, recompute", nil},
	{`perceptrons?`, "MLP", nil},
	{`matrix products?|products of (few|two) `, "matmul", nil},
	{`gains?`, "scale (of a normalization)", []string{"layer_normalization.gain"}},
	{`(optimizer'?s|update|learning) rules?`, "optimizer", nil},
	{`guests?|invites?|dismiss(es)?`, "gathered unit, prefetch, reshard", nil},
	{`homes? of`, "owner", nil},
	{`twins?`, "blocks that share programs", nil},
	{`so many`, "n, the number of", nil},
	{`what they share|what (devices|ranks) share`, "all-reduce, exchange", nil},
	{`(rank|host|worker|process|node|device)s? (is|are|was|were|that is|which is|that was)? ?lost`, "failed", nil},
	{`lost (rank|host|worker|process|node|device)s?`, "failed", nil},
	{`crews?`, "job", nil},
	{`runs of tokens`, "chunks of tokens", nil},
	{`(messages?|bytes|keys and values) (that )?(leaves?|travels?)`, "is sent", nil},
	{`(is|are|was|were|be) off by`, "error", nil},
	{`whole (parameter|weight|gradient|state|tensor|matrix|matrice|model)s?`, "full, unsharded", nil},
	{`(keys|queries) outside`, "outer loop over keys / queries", nil},
	{`layers that devices share|sequences that devices share|share (each|a) (layer|sequence)`,
		"tensor / sequence (context) parallelism", nil},
	{`rows of (a|the|each|every|its) batch`, "examples, a shard of the batch", nil},
	{`kept for the backward pass|kept between (the )?passes`, "saved for the backward pass", nil},
}

// TestWords checks that comments, strings, documents and notebooks use the field's terms.
func TestWords(t *testing.T) {
	texts := written(t)
	for _, word := range avoided {
		pattern := regexp.MustCompile(`(?i)\b(` + word.pattern + `)\b`)
		for _, text := range texts {
			for _, at := range pattern.FindAllStringIndex(text.text, -1) {
				around := text.text[max(0, at[0]-30):min(len(text.text), at[1]+30)]
				if !slices.ContainsFunc(word.except, func(part string) bool { return strings.Contains(around, part) }) {
					t.Errorf("%s: %q in %q: say %s", text.name, text.text[at[0]:at[1]], around, word.say)
				}
			}
		}
	}
}

// TestLongLines checks that lines of Go have at most 120 columns, a tab counting four. What is quoted as it is does not
// count: strings, commands in comments, outputs of examples.
func TestLongLines(t *testing.T) {
	quoted := regexp.MustCompile("\"(\\\\.|[^\"\\\\])*\"|`[^`]*`|^//\t.*|^\\s*// Output: .*")
	for at, line := range linesOf(t, tracked(t, "*.go")) {
		line = quoted.ReplaceAllString(line, "")
		if n := len([]rune(strings.ReplaceAll(line, "\t", "    "))); n > 120 {
			t.Errorf("%s has %d columns", at, n)
		}
	}
}

// written is all text for people: comments and strings of Go files, Markdown files, and the cells of notebooks.
func written(t *testing.T) []document {
	t.Helper()
	var all []document
	for _, name := range tracked(t, "*.go", "*.md", "*.ipynb") {
		switch {
		case name == "CHANGELOG.md" || strings.HasPrefix(name, "internal/house/words_test"):
		case filepath.Ext(name) == ".md":
			all = append(all, documentOf(t, name))
		case filepath.Ext(name) == ".go":
			all = append(all, goText(name, read(t, name))...)
		default:
			for i, cell := range cells(t, name) {
				all = append(all, document{fmt.Sprintf("%s, cell %d", name, i+1), lines(cell.Source)})
			}
		}
	}
	return all
}

// goText returns the comments and strings of a Go file, neighbouring comment lines as one.
func goText(name, text string) []document {
	var all []document
	fset := token.NewFileSet()
	file := fset.AddFile(name, -1, len(text))
	var s scanner.Scanner
	s.Init(file, []byte(text), nil, scanner.ScanComments)
	last := -1
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return all
		}
		if tok != token.COMMENT && tok != token.STRING {
			continue
		}
		line := fset.Position(pos).Line
		lit = strings.TrimPrefix(lit, "//")
		if tok == token.COMMENT && last == line-1 && len(all) > 0 {
			all[len(all)-1].text += lit
			last = line
			continue
		}
		if last = -1; tok == token.COMMENT {
			last = line
		}
		all = append(all, document{fmt.Sprintf("%s:%d", name, line), lit})
	}
}
