package zero_test

import (
	"fmt"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/zero"
)

// TestFaults has a rank fail, panic, stall or be cancelled, before a step and in it, in every stage. Every other rank gets an
// error that names it, within the group's timeout; whatever is asked of a rank after that says what to do.
func TestFaults(t *testing.T) {
	victim := 0
	for _, form := range toyForms {
		ranks := faulty(t, warm(t, form), three)
		leaks := devicetest.NoLeaks(t, threeDevices())
		t.Run(fmt.Sprint("stage ", form.Stage), func(t *testing.T) {
			for _, at := range []string{"before", "first", "middle", "last"} {
				for _, fault := range traintest.Faults {
					victim = (victim + 1) % three
					ranks.Play(t, traintest.Case{Fault: fault, At: at, Victim: victim})
				}
			}
		})
		leaks()
	}
}

// TestHybridFault has ranks of two copies of the state fail or stall before a step, and in its calls of a part of the group, which
// numbers its ranks anew.
func TestHybridFault(t *testing.T) {
	const size = 4
	backend := devicetest.Open(t, size)
	ranks := faulty(t, engine(t, backend, toyRecipe, zero.Options{Stage: 3, Shards: 2}), size)
	ranks.Play(t, traintest.Case{Fault: traintest.Fails, At: "before"}) // which compiles
	leaks := devicetest.NoLeaks(t, backend)
	for victim := range size {
		for _, c := range []traintest.Case{{Fault: traintest.Fails, At: "before"}, {Fault: traintest.Stalls, At: "before"},
			{Fault: traintest.Fails, At: "middle"}, {Fault: traintest.Cancels, At: "last"}} {
			c.Victim = victim
			ranks.Play(t, c)
		}
	}
	leaks()
}
