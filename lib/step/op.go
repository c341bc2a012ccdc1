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
	case Send, Recv, Store, Fetch:
		return lane{kind: op.Kind, peer: op.Peer}
	}
	return lane{}
}

// beside tells whether an operation goes on beside the passes.
func (op Op) beside() bool { return op.lane() != lane{} }

// Stream names what an operation goes on in, one after another: "compute" for passes, else its axis, "to 3" and "from
// 3" for the messages to and from rank 3, "to host" and "to device". Of a Free and a Wait, which take no time, it is
// "".
func (op Op) Stream() string {
	switch l := op.lane(); {
	case op.Kind.Pass():
		return "compute"
	case l.kind == Send:
		return fmt.Sprint("to ", l.peer)
	case l.kind == Recv:
		return fmt.Sprint("from ", l.peer)
	case l.kind == Store:
		return "to host"
	case l.kind == Fetch:
		return "to device"
	default:
		return l.axis
	}
}

// maxOps bounds what is read, in ranks and operations together: about 100 MB.
const maxOps = 1 << 20

// String is what an operation of the kind does, in words: "forward", "input gradient", "gather".
func (k Kind) String() string {
	if word, ok := kindWords[k]; ok {
		return word
	}
	return fmt.Sprintf("kind %q", byte(k))
}

var kindWords = map[Kind]string{Forward: "forward", Backward: "backward", InputGrad: "input gradient",
	WeightGrad: "weight gradient", Recompute: "recompute", Update: "update", Send: "send", Recv: "receive",
	Gather: "gather", Free: "free", Reduce: "reduce", Store: "store", Fetch: "fetch", Wait: "wait"}

// verb is what an operation beside the passes does, and to what.
type verb struct {
	Kind
	What
}

// verbs are the names of operations, PyTorch's as far as it has them. They need no [Kind.Pass].
var verbs = map[verb]string{
	{Send, Activation}: "SEND_F", {Send, Gradient}: "SEND_B", {Recv, Activation}: "RECV_F", {Recv, Gradient}: "RECV_B",
	{Gather, Parameters}: "UNSHARD", {Gather, Activation}: "UNSHARD_F",
	{Free, Parameters}: "RESHARD", {Free, Activation}: "RESHARD_F",
	{Reduce, Gradient}: "REDUCE_GRAD", {Reduce, State}: "AVERAGE",
	{Store, Activation}: "STORE_F", {Fetch, Activation}: "FETCH_F",
	{Store, Gradient}: "STORE_GRAD", {Fetch, Gradient}: "FETCH_GRAD",
	{Store, Parameters}: "STORE_PARAM", {Fetch, Parameters}: "FETCH_PARAM",
	{Store, State}: "STORE_STATE", {Fetch, State}: "FETCH_STATE",
}

var verbNamed = func() map[string]verb {
	named := map[string]verb{}
	for v, name := range verbs {
		named[name] = v
	}
	for _, k := range []Kind{Forward, Backward, InputGrad, WeightGrad, Recompute, Update} {
		named[string(rune(k))] = verb{Kind: k}
	}
	return named
}()

// ofBlock tells whether the operation is one of a block for a micro-batch. The others are of a unit.
func (v verb) ofBlock() bool {
	switch v.Kind {
	case Send, Recv:
		return true
	case Gather, Free, Store, Fetch:
		return v.What == Activation
	}
	return v.Kind.Pass() && v.Kind != Update
}

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
//	2STORE_STATE 2FETCH_STATE 2STORE_GRAD 2FETCH_PARAM …   to the host and back, of unit 2
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
	if !ok && op.Kind.Pass() && op.What == 0 {
		name, ok = string(rune(op.Kind)), true
	}
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
	if block || op.Micro != 0 || op.Kind == Update {
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
	switch {
	case op.Kind == Gather && op.What == Parameters && known:
		return p.Units[op.Unit].Shard
	case op.Kind == Reduce && op.What == Gradient && known && len(p.Units[op.Unit].Reduce) == 1:
		return p.Units[op.Unit].Reduce[0]
	case (op.Kind == Gather && op.What == Activation || op.Kind == Reduce && op.What == State) && len(p.Axes) == 1:
		return p.Axes[0].Name
	}
	return ""
}

// parseOp reads an operation from its word.
func (p *Plan) parseOp(word string) (op Op, err error) {
	rest, wait := strings.CutPrefix(word, "WAIT_")
	rest, axis, hasAxis := strings.Cut(rest, "@")
	from := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	to := strings.LastIndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }) + 1
	if from < 0 {
		from, to = 0, 0
	}
	v, known := verbNamed[rest[from:to]]
	micro := v.ofBlock() || v.Kind == Update // must be there
	all := v.Kind == Update || v.What == State && v.Kind == Reduce
	if !known || from == 0 && !all || to == len(rest) && micro || hasAxis && !plain(axis) {
		return op, fmt.Errorf("%.40q: want block, pass (F, B, I, W or R) and micro-batch as in 2F0, "+
			"or another operation such as U3, 2SEND_F0 or 2UNSHARD", word)
	}
	number := -1
	for _, n := range []struct {
		text string
		to   *int
	}{{rest[:from], &number}, {rest[to:], &op.Micro}} {
		if n.text != "" {
			if *n.to, err = parseNumber(n.text); err != nil {
				return op, fmt.Errorf("%.40q: want numbers up to %d", word, maxOps)
			}
		}
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

// parseNumber reads digits alone, and no number that no plan can have.
func parseNumber(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31) // which takes no sign
	if err == nil && n > maxOps {
		err = strconv.ErrRange
	}
	return int(n), err
}

// plain tells whether a name can be written without quotes. The names of axes must be such.
func plain(name string) bool {
	for _, c := range name {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.ContainsRune("-_.+/", c):
		default:
			return false
		}
	}
	return name != ""
}

// describe is a value in words.
func (p *Plan) describe(v Value) string {
	where := ""
	if v.Host {
		where = " in the host's memory"
	}
	block := func(format string) string { return fmt.Sprintf(format, v.Block, v.Micro) + where }
	unit := func(what string) string { return fmt.Sprintf("the %s of unit %d", what, v.Unit) + where }
	switch v.Held {
	case Input:
		return block("the input of block %d for micro-batch %d")
	case Saved:
		return block("what block %d saves in its forward pass for micro-batch %d")
	case OutGrad:
		return block("the gradient of block %d's output for micro-batch %d")
	case Left:
		return block("what the input gradient of block %d leaves for its weight gradient for micro-batch %d")
	case Whole:
		return unit("gathered parameters")
	case Sum:
		return unit("gradients")
	case Reduced:
		return unit("reduced gradients")
	}
	return unit("optimizer's states")
}
