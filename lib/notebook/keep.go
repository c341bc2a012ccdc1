package notebook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"strconv"
	"strings"
)

// maxNameBytes limits names so that their hexadecimal form is a valid file name.
const maxNameBytes = 100

var errNotKept = errors.New("no value kept")

// Keep stores a copy of value under name, replacing what was kept there, for a later cell to read with [Kept].
//
// In a notebook the copy is in a process beside the kernel, and ends with it: after a restart nothing is kept. Copies
// of tensors that are on devices stay there. A cell that reads a value says in one line if the value is stale: if
// something that the cell which kept it used has been declared again in another way. Outside a notebook the copy is in
// the process's memory. (In notebooks with --in-process it is a file, which is deleted with the kernel.)
//
// Of a [Trainer], which [Resume] continues, the state is kept: parameters, optimizer states and counters.
//
// Name is any text of 1 to 100 bytes. Value can be made of booleans, numbers, strings, slices, arrays, maps, structs,
// pointers to structs, *[github.com/gomlx/gomlx/core/tensors.Tensor], and types that marshal themselves with
// [encoding.BinaryMarshaler] or [encoding/gob.GobEncoder] (such as time.Time). It is written by [encoding/gob], so a
// slice or map without elements may come back nil, and two pointers to one value as pointers to two copies. A tensor
// comes back bit for bit, as a local one; one that is on a device is fetched to the host, and can still be used.
//
// Keep returns an error for a value that could not be restored completely: a type that has functions, channels,
// interfaces, unexported fields or pointers to numbers, or contains itself; a nil pointer in a slice or map; a
// finalized tensor. It also returns an error if writing fails. After an error the value saved before under name is
// unchanged.
func Keep(name string, value any) error {
	if err := keep(name, value); err != nil {
		return fmt.Errorf("notebook: keeping %q: %w", name, err)
	}
	return nil
}

func keep(name string, value any) error {
	if err := checkName(name); err != nil {
		return err
	}
	if value == nil {
		return errors.New("nil has no type: keep a typed value")
	}
	if run, ok := value.(Trainer); ok {
		state, err := run.Snapshot(context.Background())
		if err != nil {
			return err
		}
		value = snapshot{run.Steps(), state}
	}
	s, err := openStore()
	if err != nil {
		return err
	}
	encoded, err := encode(reflect.ValueOf(value))
	if err != nil {
		return err
	}
	return s.put(name, encoded)
}

// Kept returns a copy of the value that [Keep] stored under name. T is the type of that value.
//
// It is an error if there is no value under name, if its type is not T, or if its type was declared again and changed.
func Kept[T any](name string) (T, error) {
	var value, zero T
	if err := kept(name, &value); err != nil {
		return zero, err
	}
	return value, nil
}

// kept reads what a pointer points to. It is not generic, since each cell compiles the generic functions that it calls.
func kept(name string, pointer any) error {
	err := read(name, reflect.ValueOf(pointer).Elem())
	switch {
	case errors.Is(err, errNotKept):
		return fmt.Errorf("notebook: %w", err)
	case err != nil:
		return fmt.Errorf("notebook: reading %q: %w", name, err)
	}
	return nil
}

func read(name string, into reflect.Value) error {
	if err := checkName(name); err != nil {
		return err
	}
	s, err := openStore()
	if err != nil {
		return err
	}
	encoded, err := s.get(name)
	if errors.Is(err, fs.ErrNotExist) {
		return notKept(s, name)
	}
	if err != nil {
		return err
	}
	return decode(encoded, into)
}

func notKept(s store, name string) error {
	names, err := s.names()
	if err != nil {
		return fmt.Errorf("%w under %q, and the saved names cannot be listed: %w", errNotKept, name, err)
	}
	for i, n := range names {
		names[i] = strconv.Quote(n)
	}
	list := cmp.Or(strings.Join(names, ", "), "nothing")
	return fmt.Errorf("%w under %q; kept so far: %s; run the cell that calls notebook.Keep(%q, …) first",
		errNotKept, name, list, name)
}

func checkName(name string) error {
	if name == "" {
		return errors.New("the name is empty")
	}
	if len(name) > maxNameBytes {
		return fmt.Errorf("the name has %d bytes, at most %d are allowed", len(name), maxNameBytes)
	}
	return nil
}
