package main

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// source is the declarations of a cell's program, as GoNB writes it: the cell's main, and all that earlier cells have
// declared. Methods belong to their types, imports to "import NAME".
type source map[string]declaration

type declaration struct {
	text  string          // its tokens, without comments and ends of lines
	full  string          // as it is written
	line  int             // where it begins
	uses  map[string]bool // names that occur in it
	calls bool            // it is a variable that calls a function before main begins
}

// readSource reads the program in a folder. A program that cannot be read has no declarations.
func readSource(folder string) source {
	text, _ := os.ReadFile(filepath.Join(folder, "main.go"))
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "main.go", text, parser.SkipObjectResolution)
	if err != nil {
		return nil
	}
	at := func(p token.Pos) int { return files.Position(p).Offset }
	s := source{}
	add := func(node ast.Node, names ...string) {
		_, variable := node.(*ast.ValueSpec)
		calls, uses := false, map[string]bool{}
		ast.Inspect(node, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				uses[n.Name] = true
			case *ast.CallExpr:
				calls = calls || variable
			}
			return true
		})
		for _, name := range names {
			d, ok := s[name]
			if !ok {
				d.uses = map[string]bool{}
				d.line = files.Position(node.Pos()).Line
			}
			d.calls = d.calls || calls
			d.text += tokens(text[at(node.Pos()):at(node.End())])
			d.full += string(text[at(node.Pos()):at(node.End())]) + "\n"
			maps.Copy(d.uses, uses)
			s[name] = d
		}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			add(d, owner(d))
		case *ast.GenDecl:
			if d.Tok == token.CONST && d.Lparen.IsValid() { // a constant may depend on those before it
				var names []string
				for _, spec := range d.Specs {
					for _, name := range spec.(*ast.ValueSpec).Names {
						names = append(names, name.Name)
					}
				}
				add(d, names...)
				continue
			}
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.ImportSpec:
					add(spec, "import "+importName(spec))
				case *ast.TypeSpec:
					add(spec, spec.Name.Name)
				case *ast.ValueSpec:
					var names []string
					for _, name := range spec.Names {
						names = append(names, name.Name)
					}
					add(spec, names...)
				}
			}
		}
	}
	return s
}

// tokens returns the tokens of a piece of source, a line each.
func tokens(text []byte) string {
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile("", -1, len(text)), text, nil, 0)
	var all strings.Builder
	for {
		_, kind, literal := s.Scan()
		switch {
		case kind == token.EOF:
			return all.String()
		case kind != token.SEMICOLON || literal != "\n":
			all.WriteString(kind.String() + " " + literal + "\n")
		}
	}
}

// importName is the name under which a file uses an import, as far as its text says.
func importName(spec *ast.ImportSpec) string {
	if spec.Name != nil {
		return spec.Name.Name
	}
	parts := strings.Split(strings.Trim(spec.Path.Value, "`\""), "/")
	last := parts[len(parts)-1]
	if len(parts) > 1 && regexp.MustCompile(`^v\d+$`).MatchString(last) {
		last = parts[len(parts)-2]
	}
	return last
}

// owner is a function's name, or the name of a method's type.
func owner(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	of := f.Recv.List[0].Type
	for {
		switch t := of.(type) {
		case *ast.StarExpr:
			of = t.X
		case *ast.IndexExpr:
			of = t.X
		case *ast.IndexListExpr:
			of = t.X
		case *ast.Ident:
			return t.Name
		default:
			return f.Name.Name
		}
	}
}

// used returns the declarations that main depends on.
func (s source) used() source {
	found := s.reached("main")
	delete(found, "main") // each cell has one of its own
	maps.DeleteFunc(found, func(name string, _ declaration) bool { return strings.HasPrefix(name, "import ") })
	return found
}

// reached returns the declarations on which those depend, and those themselves.
func (s source) reached(from ...string) source {
	found := source{}
	var visit func(name string)
	visit = func(name string) {
		d, ok := s[name]
		if _, seen := found[name]; !ok || seen {
			return
		}
		found[name] = d
		for use := range d.uses {
			visit(use)
			visit("import " + use)
		}
	}
	for _, name := range from {
		visit(name)
	}
	return found
}

// runs returns what is part of the program that runs: what main depends on, and all that runs before it.
func (s source) runs() source {
	from := []string{"main", "init", "import _", "import ."}
	uses := map[string]bool{}
	for name, d := range s {
		maps.Copy(uses, d.uses)
		if d.calls {
			from = append(from, name)
		}
	}
	for name := range s {
		// A package may have another name than its path says.
		if of, ok := strings.CutPrefix(name, "import "); ok && !uses[of] {
			from = append(from, name)
		}
	}
	return s.reached(from...)
}

// changed returns the names of those declarations that are different now, or gone, sorted.
func (s source) changed(now source) (names []string) {
	for name, d := range s {
		if now[name].text != d.text {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
