package notebook

import (
	"fmt"
	"reflect"
	"strings"
)

// signatureOf describes type t down to its basic types, so that two types have the same signature only if a value of
// one can be read as a value of the other: cells are compiled one by one, and a type may be declared anew between two.
// It returns an error that says which part of t cannot be kept, if one cannot.
func signatureOf(t reflect.Type) (string, error) {
	s := signer{seen: make(map[reflect.Type]bool)}
	if err := s.add(t, t.String()); err != nil {
		return "", err
	}
	return s.String(), nil
}

type signer struct {
	strings.Builder
	seen map[reflect.Type]bool
}

// add appends the signature of t, which is found at the given place of the whole type.
func (s *signer) add(t reflect.Type, place string) error {
	if t.Name() != "" {
		s.WriteString(t.PkgPath() + "." + t.Name())
	}
	if marshal, _ := marshaler(t); t == tensorType || marshal != nil {
		s.WriteString(t.String())
		return nil
	}
	if t == tensorType.Elem() {
		return fmt.Errorf("%s is a tensor by value: keep a *tensors.Tensor", place)
	}
	if s.seen[t] {
		return nil
	}
	if t.Name() != "" {
		s.seen[t] = true
	}
	fmt.Fprintf(s, " %s(", t.Kind())
	defer s.WriteByte(')')
	switch t.Kind() {
	case reflect.Bool, reflect.String,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return nil
	case reflect.Pointer:
		return s.add(t.Elem(), place)
	case reflect.Slice:
		return s.add(t.Elem(), place+"[]")
	case reflect.Array:
		fmt.Fprintf(s, "%d ", t.Len())
		return s.add(t.Elem(), place+"[]")
	case reflect.Map:
		if err := s.add(t.Key(), place+" key"); err != nil {
			return err
		}
		s.WriteByte(' ')
		return s.add(t.Elem(), place+"[]")
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Name == "_" {
				continue
			}
			if !f.IsExported() {
				return fmt.Errorf("%s.%s is not exported and would be lost: only structs whose fields all begin "+
					"with a capital letter can be kept", place, f.Name)
			}
			s.WriteString(f.Name + " ")
			if err := s.add(f.Type, place+"."+f.Name); err != nil {
				return err
			}
			s.WriteByte(';')
		}
		return nil
	case reflect.Interface:
		return fmt.Errorf("%s is an interface (%s), which cannot be kept: give it a concrete type", place, t)
	}
	return fmt.Errorf("%s is a %s, which cannot be kept", place, t.Kind())
}
