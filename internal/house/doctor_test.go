package house

import (
	"go/ast"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// sources are the files whose errors the doctor reports.
var sources = []string{
	"kernel/doctor.go", "kernel/env.go", "kernel/gpu.go", "kernel/tools.go",
	"internal/cache/dir.go", "internal/cache/space.go", "internal/cache/part.go:remedy",
	"internal/pyenv/pyenv.go:Find",
	"internal/plugin/plugin.go", "internal/plugin/platform.go", "internal/plugin/inspect.go", "internal/plugin/flags.go",
	"internal/plugin/cuda.go", "internal/plugin/driver.go",
	"lib/xla/backend.go", "lib/xla/open.go", "lib/xla/option.go", "lib/xla/canary.go:runCanaries",
	"lib/xla/exhausted.go",
}

// TestTroubleshooting checks that docs/troubleshooting.md quotes exactly the errors that the doctor can report.
func TestTroubleshooting(t *testing.T) {
	quotes := quotes(read(t, "docs/troubleshooting.md"))
	stale := map[string]bool{}
	for _, quote := range quotes {
		stale[quote] = true
	}
	count := 0
	for _, place := range sources {
		file, function, _ := strings.Cut(place, ":")
		for _, sentence := range sentences(t, file, function) {
			count++
			found := false
			for _, quote := range quotes {
				if sentence.MatchString(quote) {
					found, stale[quote] = true, false
				}
			}
			if !found {
				t.Errorf("%s has an error without a quote (a line after >) in docs/troubleshooting.md: %s", file,
					sentence)
			}
		}
	}
	for quote, stale := range stale {
		if stale {
			t.Errorf("docs/troubleshooting.md quotes an error that the doctor does not have: %s", quote)
		}
	}
	if count < 40 {
		t.Errorf("only %d sentences found: has their code moved?", count)
	}
}

// quotes are a document's block quotes, one line each.
func quotes(text string) []string {
	var all []string
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if quote, ok := strings.CutPrefix(strings.TrimSpace(paragraph), "> "); ok {
			all = append(all, strings.ReplaceAll(quote, "\n> ", " "))
		}
	}
	return all
}

// sentences finds the texts of errors, problems and remedies in a file, or in one function of it, as patterns: values
// that the code inserts match anything.
func sentences(t *testing.T, file, function string) []*regexp.Regexp {
	t.Helper()
	var all []*regexp.Regexp
	add := func(e ast.Expr) {
		if pattern, ok := pattern(e); ok {
			all = append(all, regexp.MustCompile("^"+pattern+"$"))
		}
	}
	inside := function == ""
	ast.Inspect(parsed(t, file), func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Name.Name == function {
				inside = true
			} else if function != "" {
				return false
			}
		case *ast.CallExpr:
			name := called(n)
			if name == "panic" {
				return false // not reported
			}
			if inside && (name == "fmt.Errorf" || name == "errors.New") {
				add(n.Args[0])
			}
		case *ast.AssignStmt: // c.Problem = "…"
			if field, ok := n.Lhs[0].(*ast.SelectorExpr); ok && inside && field.Sel.Name == "Problem" {
				add(n.Rhs[0])
			}
		case *ast.ReturnStmt: // of remedy
			if function == "remedy" && inside {
				add(n.Results[0])
			}
		}
		return true
	})
	if !inside {
		t.Errorf("%s has no function %s", file, function)
	}
	return all
}

func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
	}
	return ""
}

var verb = regexp.MustCompile(`%[-+# 0-9.]*[a-zA-Z]`)

// pattern is a regular expression for a text, in which all but constants match anything. It returns false for a text
// without a constant word.
func pattern(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		if err != nil || !regexp.MustCompile(`[a-z]{2}`).MatchString(verb.ReplaceAllString(text, "")) {
			return "", false
		}
		var parts []string
		for _, part := range verb.Split(text, -1) {
			parts = append(parts, regexp.QuoteMeta(part))
		}
		return strings.Join(parts, ".+"), true
	case *ast.BinaryExpr:
		x, okX := pattern(e.X)
		y, okY := pattern(e.Y)
		if !okX {
			x = ".+"
		}
		if !okY {
			y = ".+"
		}
		return x + y, okX || okY
	}
	return "", false
}
