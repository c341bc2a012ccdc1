package parallel

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Methods of sequence (context) parallelism, as [ParseLayout] names them.
const (
	seqRing      = "ring"      // keys and values are sent around a ring
	seqUlysses   = "ulysses"   // all-to-alls exchange heads for tokens
	seqAllGather = "allgather" // keys and values are gathered; a layout has it as a ring
	seqHybrid    = "hybrid"    // rings of groups within which heads are exchanged
)

// SeqMethods lists the methods of sequence (context) parallelism: see [SequenceDegrees].
func SeqMethods() []string { return []string{seqRing, seqUlysses, seqAllGather, seqHybrid} }

// SequenceDegrees splits the sequence-parallel devices into Layout.Ring and Layout.Ulysses, for one of [SeqMethods]; ""
// is ring. Only hybrid has both: ulysses is the size of the groups, by default the largest number below devices that
// divides both devices and keyHeads, a device's key/value heads. It is an error if the method or the numbers do not fit
// each other. It does not check that groups divide the heads; the model does.
func SequenceDegrees(devices int, method string, ulysses, keyHeads int) (ring, group int, err error) {
	devices, method = cmp.Or(devices, 1), cmp.Or(method, seqRing)
	switch {
	case devices < 0:
		return 0, 0, fmt.Errorf("parallel: %d devices share sequences: want at least 1", devices)
	case !slices.Contains(SeqMethods(), method):
		return 0, 0, fmt.Errorf("parallel: the sequence method is %.40q: want one of %s", method,
			strings.Join(SeqMethods(), ", "))
	case method != seqHybrid && ulysses != 0:
		return 0, 0, fmt.Errorf("parallel: Layout.Ulysses is %d with the sequence method %s: leave it out, or choose "+
			"%s", ulysses, method, seqHybrid)
	case method == seqUlysses:
		return 1, devices, nil
	case method != seqHybrid:
		return devices, 1, nil
	case ulysses == 0:
		for ulysses = devices / 2; ulysses > 1 && (devices%ulysses != 0 || keyHeads%ulysses != 0); {
			ulysses--
		}
		if ulysses < 2 {
			return 0, 0, fmt.Errorf("parallel: no number of devices below %d divides both these and a device's %d "+
				"key/value heads: choose other numbers, or the sequence method %s", devices, keyHeads, seqRing)
		}
	case ulysses < 2 || ulysses >= devices || devices%ulysses != 0:
		return 0, 0, fmt.Errorf("parallel: Layout.Ulysses is %d of %d devices that share sequences: choose a divisor "+
			"between 1 and %[2]d", ulysses, devices)
	}
	return devices / ulysses, ulysses, nil
}

// sequences are the keys for the arguments of [SequenceDegrees].
type sequences struct {
	devices, ulysses int
	method           string
}

// key is a key of a layout's text and a pointer to its value: a number, text, bool or list of numbers.
type key struct {
	name string
	of   any
}

// keys lists the keys of a layout's text in the order of writing. Layout.Plan and Layout.Hook have none.
func (l *Layout) keys(s *sequences) []key {
	return []key{
		{"replicas", &l.Replicas}, {"pipe", &l.Pipe}, {"data", &l.Data}, {"tensor", &l.Tensor},
		{"tensor-sequence", &l.TensorSequence}, {"tensor-partition", &l.Partition},
		{"seq-parallel", &s.devices}, {"seq-method", &s.method}, {"seq-ulysses", &s.ulysses}, {"seq-ranks",
			&l.RingRanks},
		{"zero", &l.ZeRO}, {"prefetch", &l.Prefetch}, {"shards", &l.Shards},
		{"schedule", &l.Schedule}, {"chunks", &l.Chunks}, {"microbatches", &l.Microbatches}, {"cut", &l.Cut},
		{"recompute-stages", &l.Recompute}, {"offload-optimizer", &l.Offload.Update},
		{"offload-activations", &l.Offload.Activations}, {"sync", &l.Sync}, {"bucket-bytes", &l.BucketBytes},
		{"every", &l.Every}, {"each-microbatch", &l.EachMicroBatch}, {"sum-loss", &l.SumLoss}, {"hosts", &l.Hosts},
	}
}

// ParseLayout reads a layout such as "pipe=2,data=2,tensor=2,zero=1". Its keys are the flags of shardbook train;
// missing keys are 0. A key without a value is true; colons separate the numbers of a list, as in cut=3:2:1. It is an
// error if a key is unknown or given twice, or a value has the wrong type. Call [Layout.Validate] to check the layout
// itself.
func ParseLayout(text string) (l Layout, err error) {
	if text == "" {
		return l, nil
	}
	var s sequences
	keys, seen := l.keys(&s), map[string]bool{}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, given := strings.Cut(strings.TrimSpace(pair), "=")
		at := slices.IndexFunc(keys, func(k key) bool { return k.name == name })
		if at < 0 {
			var names []string
			for _, k := range keys {
				names = append(names, k.name)
			}
			return l, fmt.Errorf("parallel: the layout %.80q has the unknown key %.40q: want one of %s", text, name,
				strings.Join(names, ", "))
		}
		if seen[name] {
			return l, fmt.Errorf("parallel: the layout %.80q has the key %s twice", text, name)
		}
		seen[name] = true
		if want := keys[at].set(value, given); want != "" {
			return l, fmt.Errorf("parallel: in the layout %.80q %s is %.40q: want %s", text, name, value, want)
		}
	}
	if s.devices > 1 || s.method != "" || s.ulysses != 0 {
		l.Ring, l.Ulysses, err = SequenceDegrees(s.devices, s.method, s.ulysses, 0)
	}
	for _, n := range []*int{&l.Ring, &l.Ulysses} {
		if *n == 1 {
			*n = 0
		}
	}
	return l, err
}

// set sets the key's value, or returns a description of valid values.
func (k key) set(value string, given bool) (want string) {
	switch of := reflect.ValueOf(k.of).Elem(); of.Kind() {
	case reflect.Bool:
		yes, err := strconv.ParseBool(value)
		if err != nil && given {
			return "true or false"
		}
		of.SetBool(yes || !given)
	case reflect.String:
		if value == "" {
			return "a name"
		}
		of.SetString(value)
	case reflect.Slice:
		for text := range strings.SplitSeq(value, ":") {
			n, err := strconv.Atoi(text)
			if err != nil {
				return "whole numbers with : between them, as 3:2:1"
			}
			of.Set(reflect.Append(of, reflect.ValueOf(n)))
		}
	default:
		n, err := strconv.ParseInt(value, 10, of.Type().Bits())
		if err != nil {
			return "a whole number"
		}
		of.SetInt(n)
	}
	return ""
}

// String returns the layout in the form that [ParseLayout] reads, without defaults, Plan and Hook.
func (l Layout) String() string {
	for _, n := range []*int{&l.Replicas, &l.Pipe, &l.Data, &l.Tensor, &l.Every, &l.Hosts} {
		if *n == 1 {
			*n = 0
		}
	}
	var s sequences
	switch ring, ulysses := max(1, l.Ring), max(1, l.Ulysses); {
	case ring > 1 && ulysses > 1:
		s = sequences{ring * ulysses, ulysses, seqHybrid}
	case ulysses > 1:
		s = sequences{devices: ulysses, method: seqUlysses}
	case ring > 1:
		s.devices = ring
	}
	var pairs []string
	for _, k := range l.keys(&s) {
		switch of := reflect.ValueOf(k.of).Elem(); {
		case of.IsZero():
		case of.Kind() == reflect.Bool:
			pairs = append(pairs, k.name)
		case of.Kind() == reflect.Slice:
			pairs = append(pairs, k.name+"="+strings.ReplaceAll(strings.Trim(fmt.Sprint(of.Interface()), "[]"), " ",
				":"))
		default:
			pairs = append(pairs, fmt.Sprint(k.name, "=", of.Interface()))
		}
	}
	return strings.Join(pairs, ",")
}
