package main

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// source is the declarations of a cell's program, as GoNB writes it: the cell's main, and all that earlier cells have
// declared. Methods belong to their types.
type source map[string]declaration

type declaration struct {
	text string          // its tokens, without comments and ends of lines
	uses map[string]bool // names that occur in it
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
		uses := map[string]bool{}
		ast.Inspect(node, func(n ast.Node) bool {
			if name, ok := n.(*ast.Ident); ok {
				uses[name.Name] = true
			}
			return true
		})
		for _, name := range names {
			d, ok := s[name]
			if !ok {
				d.uses = map[string]bool{}
			}
			d.text += tokens(text[at(node.Pos()):at(node.End())])
			maps.Copy(d.uses, uses)
			s[name] = d
		}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			add(d, owner(d))
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
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
	visit("main")
	delete(found, "main") // each cell has one of its own
	return found
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
