package step

import (
	"fmt"
	"strconv"
	"strings"
)

// lane is what an operation beside the passes goes on in, one after another: an axis, the messages to or from a rank,
// or the transfers to or from the host's memory.
type lane struct {
	axis string
	kind Kind
	peer int
}

func (op Op) lane() lane {
	switch op.Kind {
	case Gather, Reduce:
		return lane{axis: op.Axis}
	case Send, Recv, Store, Fetch, HostUpdate:
		return lane{kind: op.Kind, peer: op.Peer}
	}
	return lane{}
}

// beside tells whether an operation goes on beside the passes.
func (op Op) beside() bool { return op.lane() != lane{} }

// Stream names what an operation goes on in, one after another: "compute" for passes, else its axis, "to 3" and "from
// 3" for the messages to and from rank 3, "to host", "to device" and "host". Of a Free and a Wait, which take no time,
// it is "".
func (op Op) Stream() string {
	switch op.Kind {
	case Send:
		return fmt.Sprint("to ", op.Peer)
	case Recv:
		return fmt.Sprint("from ", op.Peer)
	case Store:
		return "to host"
	case Fetch:
		return "to device"
	case HostUpdate:
		return "host"
	}
	if op.Kind.Pass() {
		return "compute"
	}
	return op.lane().axis
}

// String is what an operation of the kind does, in words: "forward", "input gradient", "gather".
func (k Kind) String() string {
	if word, ok := kindWords[k]; ok {
		return word
	}
	return fmt.Sprintf("kind %q", byte(k))
}

var kindWords = map[Kind]string{Forward: "forward", Backward: "backward", InputGrad: "input gradient",
	WeightGrad: "weight gradient", Recompute: "recompute", Update: "update", HostUpdate: "update on the host",
	Send: "send", Recv: "receive",
	Gather: "gather", Free: "free", Reduce: "reduce", Store: "store", Fetch: "fetch", Wait: "wait"}

// verb is what an operation does, and to what.
type verb struct {
	Kind
	What
}

// verbs are the names of operations, PyTorch's as far as it has them.
var verbs = map[verb]string{
	{Forward, 0}: "F", {Backward, 0}: "B", {InputGrad, 0}: "I", {WeightGrad, 0}: "W", {Recompute, 0}: "R",
	{Update, 0}: "U", {HostUpdate, 0}: "HOST_U",
	{Send, Activation}: "SEND_F", {Send, Gradient}: "SEND_B", {Recv, Activation}: "RECV_F", {Recv, Gradient}: "RECV_B",
	{Gather, Parameters}: "UNSHARD", {Gather, Activation}: "UNSHARD_F",
	{Free, Parameters}: "RESHARD", {Free, Activation}: "RESHARD_F",
	{Reduce, Gradient}: "REDUCE_GRAD", {Reduce, State}: "AVERAGE",
	{Store, Activation}: "STORE_F", {Fetch, Activation}: "FETCH_F",
	{Store, Gradient}: "STORE_GRAD", {Fetch, Gradient}: "FETCH_GRAD",
	{Fetch, Parameters}: "FETCH_PARAM",
	{Store, State}:      "STORE_STATE", {Fetch, State}: "FETCH_STATE",
}

var verbNamed = func() map[string]verb {
	named := map[string]verb{}
	for v, name := range verbs {
		named[name] = v
	}
	return named
}()

// ofBlock tells whether the operation is one of a block for a micro-batch. The others are of a unit.
func (v verb) ofBlock() bool {
	return v.Kind.Pass() && v.Kind != Update || v.Kind == Send || v.Kind == Recv || v.What == Activation
}

// ofAll tells whether the operation may be one of all units.
func (v verb) ofAll() bool { return v.Kind.updates() || v == verb{Reduce, State} }

// updates tells whether it is the optimizer's.
func (k Kind) updates() bool { return k == Update || k == HostUpdate }

// Text is an operation in one word, as PyTorch writes it as far as PyTorch has it:
//
//	2F0 2B0 2I0 2W0 2R0    passes of block 2 for micro-batch 0
//	2U3 U3                 the update of unit 2, of all units, whose last gradients are those of micro-batch 3
//	1SEND_F0 2RECV_F0      the output of block 1, and the same as the input of block 2
//	2SEND_B0 1RECV_B0      the gradient of block 2's input, and the same as that of block 1's output
//	2UNSHARD 2RESHARD      the parameters of unit 2 are gathered, freed
//	2REDUCE_GRAD           its gradients are reduced
//	2AVERAGE AVERAGE       parameters and states are averaged, of unit 2, of all
//	2UNSHARD_F0 2RESHARD_F0 2STORE_F0 2FETCH_F0            the input of block 2
//	2STORE_STATE 2FETCH_STATE              the optimizer's states of unit 2, to the host and back
//	2STORE_GRAD 2HOST_U3 2FETCH_PARAM      its gradients to the host, its update there, its new parameters back
//	WAIT_1SEND_F0          until that has ended
//
// Behind an operation of a unit is its micro-batch if that is not 0. "@axis" is at the end where the unit does not say
// which axis it is. The peer of Send and Recv is not written.
func (p *Plan) Text(op Op) string {
	if op.Kind == Wait {
		op.Kind, op.Of = op.Of, 0
		return "WAIT_" + p.Text(op)
	}
	v := verb{op.Kind, op.What}
	name, ok := verbs[v]
	if !ok {
		return fmt.Sprintf("%+v", struct{ Op }{op})
	}
	b := make([]byte, 0, 24)
	number, block := op.Unit, v.ofBlock()
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

// usualAxis is the axis of an operation where its text names none.
func (p *Plan) usualAxis(op Op) string {
	known := op.Unit >= 0 && op.Unit < len(p.Units)
	switch v := (verb{op.Kind, op.What}); {
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
	rest, wait := strings.CutPrefix(word, "WAIT_")
	rest, axis, hasAxis := strings.Cut(rest, "@")
	name := strings.Trim(rest, "0123456789")
	first, micro, _ := strings.Cut(rest, name)
	v, known := verbNamed[name]
	if !known || first == "" && !v.ofAll() || micro == "" && (v.ofBlock() || v.Kind.updates()) || hasAxis && !plain(axis) {
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
	if wait {
		op.Kind, op.Of = Wait, op.Kind
	}
	return op, nil
}

// describe is a value in words.
func (p *Plan) describe(v Value) (text string) {
	if text = heldWords[v.Held]; v.Held < Whole {
		text = fmt.Sprintf(text+" for micro-batch %d", v.Block, v.Micro)
	} else {
		text = fmt.Sprintf(text+" of unit %d", v.Unit)
	}
	if v.Host {
		text += " in the host's memory"
	}
	return text
}

var heldWords = [...]string{Input: "the input of block %d", Saved: "what block %d saves in its forward pass",
	OutGrad: "the gradient of block %d's output", Part: "the part of block %d's input",
	Left:  "what the input gradient of block %d leaves for its weight gradient",
	Whole: "the gathered parameters", Sum: "the gradients", Reduced: "the reduced gradients",
	Fresh:  "the new parameters",
	States: "the optimizer's states"}
