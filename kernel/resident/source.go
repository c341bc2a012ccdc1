package main

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// source is the declarations of a cell's program, as GoNB writes it: the cell's main, and all that earlier cells have
// declared, by their names. Methods belong to their types; imports have the name "import PATH", or "import _" where the
// package is imported for its effects.
type source map[string]declaration

type declaration struct {
	text string          // its tokens, without comments and ends of lines
	full string          // as it is written
	line int             // where it begins
	uses map[string]bool // names of those that it uses
}

// readSource reads the program in a folder. A program that cannot be read has no declarations.
func readSource(folder string) source {
	text, _ := os.ReadFile(filepath.Join(folder, "main.go"))
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "main.go", text, parser.SkipObjectResolution)
	if err != nil {
		return nil
	}
	// What is imported is not read, which is an error for each use of it. The other names are found all the same.
	found := types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	check := types.Config{Importer: nothing{}, Error: func(error) {}}
	pkg, _ := check.Check("main", files, []*ast.File{file}, &found)
	at := func(p token.Pos) int { return files.Position(p).Offset }
	s := source{}
	add := func(node ast.Node, names ...string) {
		uses := map[string]bool{}
		var visit func(n ast.Node) bool
		visit = func(n ast.Node) bool {
			if selector, ok := n.(*ast.SelectorExpr); ok {
				ast.Inspect(selector.X, visit) // what is selected is another package's, or belongs to a type
				return false
			}
			name, ok := n.(*ast.Ident)
			if _, defined := found.Defs[name]; !ok || defined {
				return true
			}
			switch of := found.Uses[name].(type) {
			case *types.PkgName:
				uses["import "+of.Imported().Path()] = true
			case nil:
				uses[name.Name] = true // it may be any
			default:
				if of.Parent() == pkg.Scope() {
					uses[name.Name] = true
				}
			}
			return true
		}
		ast.Inspect(node, visit)
		for _, name := range names {
			d, ok := s[name]
			if !ok {
				d.uses = map[string]bool{}
				d.line = files.Position(node.Pos()).Line
			}
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
			if counts(d) { // constants depend on those before them
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
					add(spec, importName(spec))
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

// counts reports whether a declaration has constants whose values depend on their places.
func counts(d *ast.GenDecl) (any bool) {
	for _, spec := range d.Specs {
		if spec, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.CONST {
			any = any || len(spec.Values) == 0
			ast.Inspect(spec, func(n ast.Node) bool {
				name, ok := n.(*ast.Ident)
				any = any || ok && name.Name == "iota"
				return true
			})
		}
	}
	return any
}

// nothing imports nothing.
type nothing struct{}

func (nothing) Import(path string) (*types.Package, error) { return nil, errors.New("it is not read") }

// importName is the name of an import in a source.
func importName(spec *ast.ImportSpec) string {
	if spec.Name != nil && (spec.Name.Name == "_" || spec.Name.Name == ".") {
		return "import _"
	}
	return "import " + strings.Trim(spec.Path.Value, "`\"")
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
		}
	}
	for _, name := range from {
		visit(name)
	}
	return found
}

// runs returns what is part of the program that runs: what main depends on, and what is declared for its effects. The
// first value of a variable that nothing else uses is no such effect.
func (s source) runs() source {
	from := []string{"main", "init", "_"}
	uses := map[string]bool{}
	for _, d := range s {
		maps.Copy(uses, d.uses)
	}
	for name := range s {
		if strings.HasPrefix(name, "import ") && !uses[name] { // for its effects, or its name is not what its path says
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
