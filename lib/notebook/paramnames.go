package notebook

import (
	"go/scanner"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const (
	importPath  = "github.com/shardbook/shardbook/lib/notebook"
	packageName = "notebook"
)

// ParamNames returns the names of the parameters that the given notebook cells read by calling [Param] or
// [LookupParam], sorted and each once.
//
// It reads the cells as text, so they need not be complete: it leaves out comments, lines that begin with % or ! (which
// are commands to the kernel) and cells that a command gives to another program (%%bash, %%sh, %%script, %%writefile).
// It knows the package by the name notebook and by any name under which one of the cells imports it. It finds names
// that are string literals, and not those that are variables or that other packages read.
func ParamNames(cells ...string) []string {
	var sources [][]lexeme
	aliases := map[string]bool{packageName: true}
	for _, cell := range cells {
		lexemes := lex(goLines(cell))
		sources = append(sources, lexemes)
		for i := 1; i < len(lexemes); i++ {
			if text, ok := lexemes[i].stringValue(); !ok || text != importPath {
				continue
			}
			switch before := lexemes[i-1]; before.tok {
			case token.IDENT:
				aliases[before.lit] = true
			case token.PERIOD:
				aliases[""] = true // a dot import: the functions stand alone
			}
		}
	}
	names := make(map[string]bool)
	for _, lexemes := range sources {
		for i := range lexemes {
			if name, ok := paramCall(lexemes[i:], aliases); ok && (i == 0 || lexemes[i-1].tok != token.PERIOD) {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// lexeme is one token of Go source.
type lexeme struct {
	tok token.Token
	lit string
}

func (l lexeme) stringValue() (string, bool) {
	if l.tok != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.lit)
	return text, err == nil
}

// paramCall returns the name that l reads if l begins with a call such as notebook.Param[int]("name", …).
func paramCall(l []lexeme, aliases map[string]bool) (name string, ok bool) {
	// take consumes a token if it is the wanted one.
	take := func(tok token.Token) bool {
		if len(l) == 0 || l[0].tok != tok {
			return false
		}
		l = l[1:]
		return true
	}
	if len(l) > 2 && l[0].tok == token.IDENT && aliases[l[0].lit] && l[1].tok == token.PERIOD {
		l = l[2:]
	} else if !aliases[""] {
		return "", false
	}
	if len(l) == 0 || l[0].lit != "Param" && l[0].lit != "LookupParam" || !take(token.IDENT) {
		return "", false
	}
	if take(token.LBRACK) {
		for len(l) > 0 && !take(token.RBRACK) {
			l = l[1:]
		}
	}
	if !take(token.LPAREN) || len(l) < 2 || l[1].tok != token.COMMA {
		return "", false
	}
	return l[0].stringValue()
}

// lex returns the tokens of Go source; what is not Go is skipped.
func lex(source string) []lexeme {
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(source))
	s.Init(file, []byte(source), func(token.Position, string) {}, 0)
	var lexemes []lexeme
	for {
		_, tok, lit := s.Scan()
		if tok == token.EOF {
			return lexemes
		}
		lexemes = append(lexemes, lexeme{tok, lit})
	}
}

// goLines returns the cell with the kernel's command lines left empty.
func goLines(cell string) string {
	lines := strings.Split(cell, "\n")
	first, _, _ := strings.Cut(strings.TrimSpace(cell), "\n")
	command, _, _ := strings.Cut(strings.TrimSpace(first), " ")
	switch command {
	case "%%bash", "%%sh", "%%script", "%%writefile":
		return ""
	}
	continued := false // the line before is a command that ends with a backslash
	for i, line := range lines {
		line = strings.TrimPrefix(line, "//gonb:")
		if !continued && !strings.HasPrefix(line, "%") && !strings.HasPrefix(line, "!") {
			continue
		}
		continued = strings.HasSuffix(strings.TrimSuffix(line, "\r"), `\`)
		lines[i] = ""
	}
	return strings.Join(lines, "\n")
}
