package xla

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/gomlx/compute"
	goxla "github.com/gomlx/go-xla/compute/xla"
	"github.com/gomlx/go-xla/pjrt"
)

// This file is the only one that reaches into go-xla's unexported fields. What it
// relies on is checked when the package is loaded, so that a new version of
// go-xla fails here with a clear message and not later with a wrong result.

// execField is where xla.Executable keeps PJRT's executable.
var execField = mustField(reflect.TypeFor[goxla.Executable](), "exec", reflect.TypeFor[*pjrt.LoadedExecutable]())

func mustField(owner reflect.Type, name string, want reflect.Type) reflect.StructField {
	field, found := owner.FieldByName(name)
	if !found || field.Type != want {
		panic(fmt.Sprintf("lib/xla was written for go-xla v0.4.1, where %v has a field %q of type %v; "+
			"the go-xla that this program is built with has another layout: build with v0.4.1", owner, name, want))
	}
	return field
}

// loadedExecutable returns PJRT's executable inside go-xla's.
func loadedExecutable(e compute.Executable) *pjrt.LoadedExecutable {
	at := unsafe.Add(reflect.ValueOf(e.(*goxla.Executable)).UnsafePointer(), execField.Offset)
	return *(**pjrt.LoadedExecutable)(at)
}
