package api

import (
	"fmt"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// describe lists what a package exports, a line for each name, field and method, in the style of Go's own api/go1.txt.
// Names of parameters are left out: changing them breaks nobody.
func describe(name string, pkg *types.Package) []string {
	d := describer{pkg: pkg}
	for _, name := range pkg.Scope().Names() {
		if !token.IsExported(name) {
			continue
		}
		switch o := pkg.Scope().Lookup(name).(type) {
		case *types.Const:
			kind := ""
			if basic, ok := o.Type().(*types.Basic); !ok || basic.Info()&types.IsUntyped == 0 {
				kind = " " + d.text(o.Type())
			}
			d.line("const %s%s = %s", name, kind, o.Val().ExactString())
		case *types.Var:
			d.line("var %s %s", name, d.text(o.Type()))
		case *types.Func:
			d.line("func %s%s", name, d.signature(o))
		case *types.TypeName:
			d.named(o)
		}
	}
	for i := range d.lines {
		d.lines[i] = "pkg " + name + ", " + d.lines[i]
	}
	slices.Sort(d.lines)
	return d.lines
}

type describer struct {
	pkg   *types.Package
	lines []string
}

func (d *describer) line(format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// text is a type as the package's own files write it, but for names of parameters.
func (d *describer) text(t types.Type) string {
	return types.TypeString(nameless(t), func(other *types.Package) string {
		if other == d.pkg {
			return ""
		}
		return other.Name()
	})
}

// signature is a function's type parameters, parameters and results.
func (d *describer) signature(f *types.Func) string {
	return d.typeParams(f.Signature().TypeParams()) + strings.TrimPrefix(d.text(f.Signature()), "func")
}

func (d *describer) typeParams(list *types.TypeParamList) string {
	if list.Len() == 0 {
		return ""
	}
	var each []string
	for p := range list.TypeParams() {
		each = append(each, p.Obj().Name()+" "+d.text(p.Constraint()))
	}
	return "[" + strings.Join(each, ", ") + "]"
}

// named describes a type with its fields and methods.
func (d *describer) named(o *types.TypeName) {
	if o.IsAlias() {
		d.line("type %s = %s", o.Name(), d.text(types.Unalias(o.Type())))
		return
	}
	t := o.Type().(*types.Named)
	name := o.Name() + d.typeParams(t.TypeParams())
	switch u := t.Underlying().(type) {
	case *types.Struct:
		d.line("type %s struct", name)
		for f := range u.Fields() {
			if f.Embedded() && f.Exported() {
				d.line("type %s struct, embedded %s", o.Name(), d.text(f.Type()))
			} else if f.Exported() {
				d.line("type %s struct, %s %s", o.Name(), f.Name(), d.text(f.Type()))
			}
		}
	default: // an interface on one line, since a further method breaks who implements it
		d.line("type %s %s", name, d.text(u))
	}
	if types.IsInterface(t) {
		return
	}
	values := types.NewMethodSet(t)
	for m := range types.NewMethodSet(types.NewPointer(t)).Methods() {
		f := m.Obj().(*types.Func)
		if !f.Exported() || f.Pkg() != d.pkg {
			continue // what a type of another package brings is said by the line of the embedded field
		}
		receiver := "*" + o.Name()
		if values.Lookup(f.Pkg(), f.Name()) != nil {
			receiver = o.Name()
		}
		d.line("method (%s) %s%s", receiver, f.Name(), d.signature(f))
	}
}

// nameless is a type without the names of the parameters of functions in it.
func nameless(t types.Type) types.Type {
	switch t := t.(type) {
	case *types.Signature:
		return types.NewSignatureType(nil, nil, nil, tuple(t.Params()), tuple(t.Results()), t.Variadic())
	case *types.Pointer:
		return types.NewPointer(nameless(t.Elem()))
	case *types.Slice:
		return types.NewSlice(nameless(t.Elem()))
	case *types.Map:
		return types.NewMap(nameless(t.Key()), nameless(t.Elem()))
	case *types.Interface:
		var methods []*types.Func
		for m := range t.ExplicitMethods() {
			signature := nameless(m.Signature()).(*types.Signature)
			methods = append(methods, types.NewFunc(m.Pos(), m.Pkg(), m.Name(), signature))
		}
		return types.NewInterfaceType(methods, slices.Collect(t.EmbeddedTypes()))
	}
	return t
}

func tuple(t *types.Tuple) *types.Tuple {
	var vars []*types.Var
	for v := range t.Variables() {
		vars = append(vars, types.NewParam(v.Pos(), v.Pkg(), "", nameless(v.Type())))
	}
	return types.NewTuple(vars...)
}
