package rank_test

import (
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/rank"
)

// TestPool borrows buffers: one that was given back is used again, by messages of its shape alone, and none is left in the end.
func TestPool(t *testing.T) {
	backend := devicetest.One()
	leaks := devicetest.NoLeaks(t, backend)
	p := rank.NewPool(backend, 0)
	shape := shapes.Make(dtypes.Float32, 2, 3)
	first, made, err := p.Borrow(shape)
	if err != nil || !made || !first.Shape().Equal(shape) {
		t.Fatalf("a buffer of shape %s, made: %v, %v", first.Shape(), made, err)
	}
	second, made, err := p.Borrow(shape)
	if err != nil || !made || second == first {
		t.Errorf("beside one in use: made: %v, %v", made, err)
	}
	p.GiveBack(first)
	other, made, err := p.Borrow(shapes.Make(dtypes.Float32, 6))
	if err != nil || !made || other == first {
		t.Errorf("another shape: made: %v, %v", made, err)
	}
	again, made, err := p.Borrow(shape)
	if err != nil || made || again != first {
		t.Errorf("after one was given back: made: %v, %v", made, err)
	}
	p.GiveBack(again)
	p.GiveBack(second)
	p.GiveBack(other)
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	leaks()
}
