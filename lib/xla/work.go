package xla

import "strings"

// Operation is one operation of a compiled program: what XLA runs as one, and what a [Profile] has events of.
//
// FLOPs are counted so:
//   - a product of matrices: 2·M·N·K, of each of a batch; a convolution likewise, 2 for each multiplication, the
//     padding's included;
//   - what goes element by element, from an addition to an exponential, a comparison or a conversion: 1 for each
//     element;
//   - a reduction of n elements to m: n−m times what it combines two with; in windows of w to m: m·(w−1) times;
//     scatter: once for each element that it brings; sorting n along an axis: ⌈log₂ n⌉ comparisons for each element;
//   - an all-reduce or reduce-scatter: 1 for each element that a device gives;
//   - what moves data: 0.
//
// Bytes are the least that must move between memory and the device: of its operands what it reads and of its results
// what it writes, each once. Of what it slices it reads the slice; what it updates in place it does not copy. A fusion
// keeps what is inside it to itself.
type Operation struct {
	Module, Name string // in XLA's words, as event and [OperationTime] have them
	Kind         string // "dot", "fusion", "reduce", "custom-call" and so on

	FLOPs  float64 // of one run, on one device
	Bytes  int64   // of one run, on one device
	Opaque bool    // FLOPs lacks what only the author of a custom call can count

	Runs  float64 // in one run of the program: more than 1 in loops
	Guess bool    // Runs is a guess: in a loop it counts one turn, in a conditional each branch as taken
}

// Operations lists the operations of what the program most recently compiled or ran as, as XLA optimized it: those of
// loops and branches too, but not the loop as such, nor what nothing runs for. It returns an error before the first
// Call or Prepare, and after Close.
func (p *Program) Operations() ([]Operation, error) {
	return latest(&p.compiled, (*executable).operations)
}

// Work is what one run of a program does on one device.
type Work struct {
	FLOPs, Bytes float64 // see Operation
	Opaque       int     // operations of which the FLOPs are not all known
	Guesses      int     // operations of which it is not known how often they run
}

// Work adds up the operations, each as often as it runs. It returns an error where Operations does.
func (p *Program) Work() (Work, error) {
	operations, err := p.Operations()
	if err != nil {
		return Work{}, err
	}
	var w Work
	for _, o := range operations {
		w.FLOPs += o.Runs * o.FLOPs
		w.Bytes += o.Runs * float64(o.Bytes)
		if o.Opaque {
			w.Opaque++
		}
		if o.Guess {
			w.Guesses++
		}
	}
	return w, nil
}

func (e *executable) operations() ([]Operation, error) {
	module, err := e.optimized()
	if err != nil {
		return nil, err
	}
	h := readHLO(module)
	return h.operations(h.entry, 1, false), nil
}

// operations lists those of a computation that runs that often.
func (h *hlo) operations(c *computation, runs float64, guess bool) (all []Operation) {
	inside := func(c *computation, runs float64, guess bool) { all = append(all, h.operations(c, runs, guess)...) }
	for _, i := range c.instructions {
		switch kind := i.kind(); {
		case kind == "while" && len(i.called) == 2:
			turns, known := i.turns()
			inside(i.called[0], runs*turns, guess || !known)
			inside(i.called[1], runs*(turns+1), guess || !known) // the condition
		case kind == "conditional":
			for _, branch := range i.called {
				inside(branch, runs, true)
			}
		case kind == "call" || kind == "async":
			for _, called := range i.called {
				inside(called, runs, guess)
			}
		case !free[kind] && !strings.HasSuffix(i.opcode, "-done") && !strings.HasSuffix(i.opcode, "-update"):
			flops, opaque := i.flops()
			all = append(all, Operation{
				Module: h.name, Name: i.field("name").String(), Kind: kind,
				FLOPs: flops, Bytes: i.moved(), Opaque: opaque, Runs: runs, Guess: guess,
			})
		}
	}
	return all
}

// kind is the opcode. On GPUs some operations are a pair, of which the first stands for both.
func (i *instruction) kind() string { return strings.TrimSuffix(i.opcode, "-start") }
