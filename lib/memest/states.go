package memest

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
)

// tensor is a device's shard of a parameter under tensor parallelism (Shoeybi et al. 2019, §3), before ZeRO shards it.
type tensor struct {
	cost.Tensor        // Dims are the shard's
	elements    string // the formula of their product
}

// only returns the kind of the blocks that have the tensor, as [stage.kind] does; "" if all have.
func (t tensor) only() cost.Part {
	switch t.Part {
	case cost.MLP:
		return cost.MLP
	case cost.Router, cost.Routed, cost.Shared:
		return cost.Routed
	}
	return ""
}

// elements are the formulas of the shards' sizes.
var elements = map[string]string{
	"tok": "ceil(v/t)*h", "pos": "w*h", "head.w": "h*ceil(v/t)",
	"h.ln1.g": "h", "h.ln1.b": "h", "h.ln2.g": "h", "h.ln2.b": "h", "lnf.g": "h", "lnf.b": "h",
	"h.qkv.w": "h*(a/t+2*ceil(k/t))*d", "h.qkv.b": "(a/t+2*ceil(k/t))*d",
	"h.o.w": "a/t*d*h", "h.o.b": "h",
	"h.gate.w": "h*f/t", "h.gate.b": "f/t", "h.up.w": "h*f/t", "h.up.b": "f/t",
	"h.down.w": "f/t*h", "h.down.b": "h",

	"h.q.w": "h*a/t*d", "h.qdown.w": "h*Q", "h.qdown.g": "Q", "h.qup.w": "Q*a/t*d",
	"h.kvdown.w": "h*(L+R)", "h.kvdown.g": "L", "h.kvup.w": "L*a/t*(d-R+V)", latentOut: "a/t*V*h",
	"h.qnorm.g": "d", "h.knorm.g": "d", allNorm + "h.qnorm.g": "a*d", allNorm + "h.knorm.g": "k*d", "h.sinks": "a/t",

	"h.router.w": "h*E", "h.router.bias": "E",
	"h.experts.gate.w": "E/(e*t)*h*F", "h.experts.gate.b": "E/(e*t)*F",
	"h.experts.up.w": "E/(e*t)*h*F", "h.experts.up.b": "E/(e*t)*F",
	"h.experts.down.w": "E/(e*t)*F*h", "h.experts.down.b": "E/(e*t)*h",
	"h.shared.gate.w": "h*S*F/t", "h.shared.gate.b": "S*F/t", "h.shared.up.w": "h*S*F/t", "h.shared.up.b": "S*F/t",
	"h.shared.down.w": "S*F/t*h", "h.shared.down.b": "h",
}

// What elements has besides names of tensors: the output projection of latent attention, and the prefix of
// normalizations over all heads, which every device has whole.
const (
	latentOut = "latent h.o.w"
	allNorm   = "all "
)

// local returns the shards of a device.
func (s Setup) local(of device) []tensor {
	m, t := s.Model, s.Parallelism.Tensor
	kv := max(1, m.KV()/t) // with fewer heads than devices, several devices have the same one
	var found []tensor
	for _, p := range m.Tensors() {
		switch p.Part {
		case cost.Embedding:
			if !of.embeds && !(of.heads && m.Tied) {
				continue
			}
		case cost.Position:
			if !of.embeds {
				continue
			}
		case cost.LastNorm, cost.Head:
			if !of.heads {
				continue
			}
		case cost.MLP:
			p.Count = of.dense
		case cost.Router, cost.Routed, cost.Shared:
			p.Count = of.blocks - of.dense
		default:
			p.Count = of.blocks
		}
		if p.Count == 0 {
			continue
		}
		dims, formula := slices.Clone(p.Dims), elements[p.Name]
		switch p.Name {
		case "tok":
			dims[0] = (dims[0] + t - 1) / t
		case "head.w":
			dims[1] = (dims[1] + t - 1) / t
		case "h.qkv.w", "h.qkv.b":
			dims[len(dims)-1] = (m.Heads/t + 2*kv) * m.HeadDim()
		case "h.gate.w", "h.gate.b", "h.up.w", "h.up.b", "h.shared.gate.w", "h.shared.gate.b", "h.shared.up.w",
			"h.shared.up.b", "h.q.w", "h.qup.w", "h.kvup.w", "h.sinks":
			dims[len(dims)-1] /= t
		case "h.o.w", "h.down.w", "h.shared.down.w":
			dims[len(dims)-2] /= t
		}
		switch {
		case p.Part == cost.Routed:
			dims[0] /= s.Parallelism.Expert * t
		case p.Name == "h.o.w":
			formula = s.heads(formula, elements[latentOut])
		case m.QKNorm == "all" && (p.Name == "h.qnorm.g" || p.Name == "h.knorm.g"):
			formula = elements[allNorm+p.Name]
		}
		p.Dims = dims
		found = append(found, tensor{p, formula})
	}
	return found
}

// states lists the parameters, gradients and optimizer states of these tensors.
func (s Setup) states(v *sheet, tensors []tensor) ([]Item, error) {
	var items []Item
	perParameter := s.Precision.ParamBytes()
	const zero = "; ZeRO: Rajbhandari et al. 2020, §5"
	type held struct {
		kind   Kind
		bytes  int
		stage  int // of ZeRO, from which on it is sharded
		host   bool
		source string
	}
	all := []held{
		{Parameters, perParameter.Param, 3, false, "one number each" + zero},
		{Master, perParameter.Master, 1, s.OffloadOptimizer, "Micikevicius et al. 2017, §3.1" + zero},
		{Gradients, perParameter.Gradient, 2, false, "one number each" + zero},
	}
	if s.Method == Compiled { // without ZeRO
		all = []held{{Parameters, s.Precision.Params.Size(), 3, false, "lib/train has this one copy"}}
	}
	for _, h := range all {
		if h.bytes == 0 {
			continue
		}
		for _, part := range partsOf(tensors) {
			var terms []string
			for _, t := range part.tensors {
				terms = append(terms, s.shard(t, h.stage))
			}
			formula := fmt.Sprintf("%d*(%s)", h.bytes, strings.Join(terms, "+"))
			items = append(items, Item{Kind: h.kind, Name: part.name, Count: part.count, Formula: formula,
				Source: h.source, Host: h.host})
		}
	}
	optimizer, err := s.optimizer(tensors)
	if err != nil {
		return nil, err
	}
	items = append(items, optimizer...)
	for i := range items {
		if err := items[i].fill(v); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// fill sets the bytes from the formula.
func (it *Item) fill(v *sheet) error {
	one, err := v.compute(it.Formula)
	if err == nil {
		it.Values = one.values
		it.Bytes, err = times(it.Count, one.bytes)
	}
	if err != nil {
		return fmt.Errorf("%s of %s: %w", it.Kind, it.Name, err)
	}
	return nil
}

// times multiplies, and returns an error on overflow.
func times(count, bytes int64) (int64, error) {
	high, low := bits.Mul64(uint64(count), uint64(bytes))
	if high != 0 || low > math.MaxInt64>>4 {
		return 0, fmt.Errorf("%d times %d bytes overflow an int64: make the model, the batch or "+
			"the sequence smaller", count, bytes)
	}
	return int64(low), nil
}

// ranks is the number of ranks that ZeRO shards over: data-parallel and context-parallel ones, which all have the same
// parameters except experts.
func (s Setup) ranks() int { return s.Parallelism.Data * s.Parallelism.Context }

// sharded reports whether ZeRO shards what it shards from this stage on.
func (s Setup) sharded(from int) bool { return s.Parallelism.ZeRO >= from && s.ranks() > 1 }

// copies is the number of ranks with the same part of a tensor, which ZeRO shards over: fewer for experts.
func (s Setup) copies(t tensor) int {
	if t.Part == cost.Routed {
		return s.ranks() / s.Parallelism.Expert
	}
	return s.ranks()
}

// shard is the formula of a rank's shard of a tensor's elements.
func (s Setup) shard(t tensor, from int) string {
	switch {
	case !s.sharded(from) || s.copies(t) == 1:
		return t.elements
	case s.copies(t) < s.ranks():
		return "ceil(" + t.elements + "/(n/e))"
	}
	return "ceil(" + t.elements + "/n)"
}

// part is the tensors of one part of the model.
type part struct {
	name    string
	count   int64
	tensors []tensor
}

func partsOf(tensors []tensor) []part {
	var parts []part
	for _, t := range tensors {
		at := slices.IndexFunc(parts, func(p part) bool { return p.name == string(t.Part) })
		if at < 0 {
			at = len(parts)
			parts = append(parts, part{name: string(t.Part), count: int64(t.Count)})
		}
		parts[at].tensors = append(parts[at].tensors, t)
	}
	return parts
}

// optimizer lists the states that the optimizer declares.
func (s Setup) optimizer(tensors []tensor) ([]Item, error) {
	var items []Item
	at := map[string]int{} // by part and state
	for _, t := range tensors {
		spec := params.New(t.Name, s.Precision.Params, t.Dims...)
		length := t.Size()
		var cut optim.Part
		if n := int64(s.copies(t)); s.sharded(1) && n > 1 {
			length = (length + n - 1) / n
			cut = optim.Flat{Length: int(length)}
		}
		states, err := optim.StatesOfParts(s.Optimizer, params.Tree{spec}, []optim.Part{cut})
		if err != nil {
			return nil, err
		}
		for _, state := range states {
			name := strings.TrimPrefix(state.Name, t.Name+".")
			key := string(t.Part) + " " + name
			if _, ok := at[key]; !ok {
				at[key] = len(items)
				items = append(items, Item{Kind: Optimizer, Name: fmt.Sprintf("%s of %s", name, t.Part),
					Count: int64(t.Count), Source: fmt.Sprintf("%T.States", s.Optimizer), Host: s.OffloadOptimizer})
			}
			it := &items[at[key]]
			if it.Formula != "" {
				it.Formula += "+"
			}
			it.Formula += s.stateFormula(t, length, state)
		}
	}
	return items, nil
}

// stateFormula is a state's bytes: by the tensor's formula if it has as many elements as the device's shard of the
// tensor, else by its own dimensions.
func (s Setup) stateFormula(t tensor, length int64, state optim.State) string {
	bytes := state.Shape.DType.Size()
	if int64(state.Shape.Size()) == length {
		return fmt.Sprintf("%d*(%s)", bytes, s.shard(t, 1))
	}
	var factors []string
	for _, d := range append(slices.Clone(state.Shape.Dimensions), bytes) {
		factors = append(factors, fmt.Sprint(d))
	}
	return strings.Join(factors, "*")
}
