package residual

import (
	"testing"
	"unsafe"
)

// Address is where the region lies.
func (r *Region) Address() uintptr {
	bytes, err := memory(r.memory)
	if err != nil {
		panic(err)
	}
	return uintptr(unsafe.Pointer(&bytes[0]))
}

// Temporary is what the program that fills the region needs besides it.
func (r *Region) Temporary(t *testing.T) int64 {
	m, err := r.put.Memory()
	if err != nil {
		t.Fatal(err)
	}
	return m.Temporary
}
