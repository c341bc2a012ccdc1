package step

import (
	"fmt"
	"strconv"
	"strings"
)

// verb is a kind of operation and what it is applied to.
type verb struct {
	Kind
	What
}

func (op Op) verb() verb { return verb{op.Kind, op.What} }

// entry is a verb's name, PyTorch's where it has one, and how it uses the values of a rank, in this order. Passes skip
// values that do not exist: see [Plan.exists].
type entry struct {
	name string
	does []touch
}

type touch struct {
	how   how
	held  Held
	where where
}

// how an operation uses a value.
type how byte

const (
	uses   how = iota // must be there
	takes             // consumes it
	makes             // a new one, in the place of an old one
	adds              // accumulates into it, or makes it
	mayUse            // if the list has such a value
	mayTake
	mayAwait // as mayUse; the rank itself waits for it, even if the operation runs beside the passes
)

// where is the place of a value, seen from the operation.
type where byte

const (
	here     where = iota // of its own block or unit, on the device
	host                  // the same in host memory
	next                  // of the next block
	previous              // of the previous block
)

// table has all operations. In it Reduced stands for Sum in units that are not reduced: see [Plan.ofUnit].
var table = map[verb]entry{
	{Forward, 0}:   {"F", []touch{{uses, Full, here}, {uses, Input, here}, {makes, Saved, here}, {makes, Input, next}}},
	{Recompute, 0}: {"R", []touch{{uses, Full, here}, {uses, Input, here}, {makes, Saved, here}, {makes, Input, next}}},
	{Backward, 0}: {"B", []touch{{uses, Full, here}, {uses, Input, here}, {uses, Saved, here}, {uses, OutGrad, here},
		{makes, OutGrad, previous}, {adds, Sum, here}}},
	{InputGrad, 0}: {"I", []touch{{uses, Full, here}, {uses, Input, here}, {uses, Saved, here}, {uses, OutGrad, here},
		{makes, OutGrad, previous}, {makes, ForWeightGrad, here}}},
	{WeightGrad, 0}: {"W", []touch{{uses, Full, here}, {uses, Input, here}, {uses, Saved, here}, {uses, OutGrad, here},
		{uses, ForWeightGrad, here}, {adds, Sum, here}}},
	{Update, 0}:     {"U", []touch{{takes, Reduced, here}, {mayUse, States, here}, {mayUse, Full, here}}},
	{HostUpdate, 0}: {"HOST_U", []touch{{takes, Reduced, host}, {makes, Fresh, host}}},

	{Send, Activation}:   {"SEND_F", []touch{{uses, Input, next}}},
	{Send, Gradient}:     {"SEND_B", []touch{{uses, OutGrad, previous}}},
	{Recv, Activation}:   {"RECV_F", []touch{{makes, Input, here}}},
	{Recv, Gradient}:     {"RECV_B", []touch{{makes, OutGrad, here}}},
	{Gather, Parameters}: {"UNSHARD", []touch{{mayTake, Fresh, here}, {makes, Full, here}}},
	{Gather, Activation}: {"UNSHARD_F", []touch{{takes, Part, here}, {makes, Input, here}}},
	{Free, Parameters}:   {"RESHARD", []touch{{takes, Full, here}}},
	{Free, Activation}:   {"RESHARD_F", []touch{{takes, Input, here}, {makes, Part, here}}},
	{Reduce, Gradient}:   {"REDUCE_GRAD", []touch{{takes, Sum, here}, {adds, Reduced, here}}},
	{Reduce, State}:      {"AVERAGE", []touch{{mayAwait, Fresh, here}}},

	{Store, Activation}: {"STORE_F", []touch{{takes, Input, here}, {makes, Input, host}}},
	{Fetch, Activation}: {"FETCH_F", []touch{{takes, Input, host}, {makes, Input, here}}},
	{Store, Gradient}:   {"STORE_GRAD", []touch{{takes, Reduced, here}, {makes, Reduced, host}}},
	{Fetch, Gradient}:   {"FETCH_GRAD", []touch{{takes, Reduced, host}, {makes, Reduced, here}}},
	{Fetch, Parameters}: {"FETCH_PARAM", []touch{{takes, Fresh, host}, {makes, Fresh, here}}},
	{Store, State}:      {"STORE_STATE", []touch{{takes, States, here}, {makes, States, host}}},
	{Fetch, State}:      {"FETCH_STATE", []touch{{takes, States, host}, {makes, States, here}}},
}

// beside reports whether an operation runs beside the passes.
func (op Op) beside() bool { return !op.Kind.Pass() && op.Kind != Free && op.Kind != Wait }

func (op Op) isMessage() bool { return op.Kind == Send || op.Kind == Recv }

// Stream names the queue in which an operation runs, one after another: "compute" for passes; the axis for collectives;
// "to 3" and "from 3" for messages; "to host" and "to device" for copies; "host" for updates there; "" for Free and
// Wait, which take no time.
func (op Op) Stream() string {
	switch op.Kind {
	case Send:
		return "to " + strconv.Itoa(op.Peer)
	case Recv:
		return "from " + strconv.Itoa(op.Peer)
	case Store:
		return "to host"
	case Fetch:
		return "to device"
	case HostUpdate:
		return "host"
	case Gather, Reduce:
		return op.Axis
	case Free, Wait:
		return ""
	}
	return "compute"
}

// String names the kind in words: "forward", "input gradient", "gather".
func (k Kind) String() string {
	for _, of := range kinds {
		if of.kind == k {
			return of.words
		}
	}
	return fmt.Sprintf("kind %q", byte(k))
}

var kinds = []struct {
	kind  Kind
	words string
}{{Forward, "forward"}, {Backward, "backward"}, {InputGrad, "input gradient"}, {WeightGrad, "weight gradient"},
	{Recompute, "recompute"}, {Update, "update"}, {Send, "send"}, {Recv, "receive"}, {Gather, "gather"}, {Free, "free"},
	{Reduce, "reduce"}, {Store, "store"}, {Fetch, "fetch"}, {HostUpdate, "update on the host"}, {Wait, "wait"}}

var verbNamed = func() map[string]verb {
	named := map[string]verb{}
	for v, of := range table {
		named[of.name] = v
	}
	return named
}()

// ofBlock reports whether the operation is about a block and a micro-batch; others are about a unit.
func (v verb) ofBlock() bool {
	return v.Kind.Pass() && v.Kind != Update || v.Kind == Send || v.Kind == Recv || v.What == Activation
}

// ofAll reports whether the operation may be about all units.
func (v verb) ofAll() bool { return v.Kind.updates() || v == verb{Reduce, State} }

func (k Kind) updates() bool { return k == Update || k == HostUpdate }

// Text writes an operation as one word, PyTorch's where it has one:
//
//	2F0 2B0 2I0 2W0 2R0    passes of block 2 for micro-batch 0
//	2U3 U3                 update of unit 2, of all units, after micro-batch 3
//	1SEND_F0 2RECV_F0      output of block 1, which is the input of block 2
//	2SEND_B0 1RECV_B0      gradient of block 2's input, which is the output gradient of block 1
//	2UNSHARD 2RESHARD      parameters of unit 2 are gathered, freed
//	2REDUCE_GRAD           its gradients are reduced
//	2AVERAGE AVERAGE       parameters and states of unit 2, of all units, are averaged
//	2UNSHARD_F0 2RESHARD_F0 2STORE_F0 2FETCH_F0            the input of block 2
//	2STORE_STATE 2FETCH_STATE              optimizer states of unit 2, to the host and back
//	2STORE_GRAD 2HOST_U3 2FETCH_PARAM      its gradients to the host, its update there, its new parameters back
//	WAIT_1SEND_F0          wait until that is done
//	&2B0                   a paired pass (Paired)
//
// The micro-batch of a unit's operation follows if it is not 0, and "@axis" if the unit does not determine the axis.
// The peer of Send and Recv is not written.
func (p *Plan) Text(op Op) string {
	if op.Paired {
		op.Paired = false
		return "&" + p.Text(op)
	}
	if op.Kind == Wait {
		op.Kind, op.Of = op.Of, 0
		return "WAIT_" + p.Text(op)
	}
	name := table[op.verb()].name
	if name == "" {
		return fmt.Sprintf("%+v", struct{ Op }{op})
	}
	b := make([]byte, 0, 24)
	number, block := op.Unit, op.verb().ofBlock()
	if block {
		number = op.Block
	}
	if block || number >= 0 {
		b = strconv.AppendInt(b, int64(number), 10)
	}
	b = append(b, name...)
	if block || op.Micro != 0 || op.Kind.updates() {
		b = strconv.AppendInt(b, int64(op.Micro), 10)
	}
	if op.Axis != p.usualAxis(op) {
		b = append(append(b, '@'), op.Axis...)
	}
	return string(b)
}

// usualAxis is the axis of an operation whose text names none.
func (p *Plan) usualAxis(op Op) string {
	known := op.Unit >= 0 && op.Unit < len(p.Units)
	switch v := op.verb(); {
	case v == verb{Gather, Parameters} && known:
		return p.Units[op.Unit].Shard
	case v == verb{Reduce, Gradient} && known && len(p.Units[op.Unit].Reduce) == 1:
		return p.Units[op.Unit].Reduce[0]
	case (v == verb{Gather, Activation} || v == verb{Reduce, State}) && len(p.Axes) == 1:
		return p.Axes[0].Name
	}
	return ""
}

// parseOp reads an operation from its word.
func (p *Plan) parseOp(word string) (op Op, err error) {
	rest, paired := strings.CutPrefix(word, "&")
	rest, wait := strings.CutPrefix(rest, "WAIT_")
	rest, axis, hasAxis := strings.Cut(rest, "@")
	name := strings.Trim(rest, "0123456789")
	first, micro, _ := strings.Cut(rest, name)
	v, known := verbNamed[name]
	if !known || first == "" && !v.ofAll() || micro == "" && (v.ofBlock() || v.Kind.updates()) || hasAxis &&
		!plain(axis) {
		return op, fmt.Errorf("%.40q: want block, pass (F, B, I, W or R) and micro-batch as in 2F0, "+
			"or another operation such as U3, 2SEND_F0 or 2UNSHARD", word)
	}
	number := -1
	if first != "" {
		number, err = parseNumber(first)
	}
	if micro != "" && err == nil {
		op.Micro, err = parseNumber(micro)
	}
	if err != nil {
		return op, fmt.Errorf("%.40q: want numbers up to %d", word, maxOps)
	}
	if op.Kind, op.What = v.Kind, v.What; v.ofBlock() {
		op.Block = number
	} else {
		op.Unit = number
	}
	if op.Axis = axis; !hasAxis {
		op.Axis = p.usualAxis(op)
	}
	if op.Paired = paired; wait {
		op.Kind, op.Of = Wait, op.Kind
	}
	return op, nil
}

// describe names a value in words.
func (p *Plan) describe(v Value) string {
	number, end := v.Unit, ""
	if v.Held < Full {
		number, end = v.Block, fmt.Sprint(" for micro-batch ", v.Micro)
	}
	if v.Host {
		end += " in host memory"
	}
	return fmt.Sprintf(heldWords[v.Held], number) + end
}

var heldWords = [...]string{Input: "the input of block %d", Saved: "the saved activations of block %d",
	OutGrad: "the output gradient of block %d", Part: "the shard of block %d's input",
	ForWeightGrad: "what InputGrad of block %d computes for its WeightGrad",
	Full:          "the gathered parameters of unit %d", Sum: "the gradients of unit %d",
	Reduced: "the reduced gradients of unit %d", Fresh: "the new parameters of unit %d",
	States: "the optimizer's states of unit %d"}
