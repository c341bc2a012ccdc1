package foreign

import (
	"sync"
	"unsafe"
)

// place is where a function was loaded from.
type place struct{ library, symbol string }

var places sync.Map // by address

// Located notes that a function at an address is a symbol of a shared library, so that another process can load it too.
func Located(at unsafe.Pointer, library, symbol string) { places.Store(at, place{library, symbol}) }

// Where returns what Located has noted for the address.
func Where(at unsafe.Pointer) (library, symbol string, ok bool) {
	p, ok := places.Load(at)
	if !ok {
		return "", "", false
	}
	return p.(place).library, p.(place).symbol, true
}
