package parallel

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// The ways in which devices share sequences, as [ParseLayout] names them.
const (
	seqRing      = "ring"      // keys and values are sent around a ring
	seqUlysses   = "ulysses"   // all-to-alls exchange heads for tokens
	seqAllGather = "allgather" // keys and values are gathered: a ring, to a layout
	seqHybrid    = "hybrid"    // rings of groups within which heads are exchanged
)

// SeqMethods lists the ways in which devices can share sequences: see [SequenceDegrees].
func SeqMethods() []string { return []string{seqRing, seqUlysses, seqAllGather, seqHybrid} }

// SequenceDegrees splits the devices that share sequences into Layout.Ring and Layout.Ulysses, for one of [SeqMethods];
// "" is ring. Only hybrid has both: groups of as many devices as ulysses says or, where that is 0, the largest number
// that divides the devices and a device's key/value heads. It is an error if the method or the numbers do not fit each
// other; whether the heads do is for the model to say.
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
			"%s",
			ulysses,
			method, seqHybrid)
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
				"key/value "+
				"heads: "+
				"choose other numbers, or the sequence method %s", devices, keyHeads, seqRing)
		}
	case ulysses < 2 || ulysses >= devices || devices%ulysses != 0:
		return 0, 0, fmt.Errorf("parallel: Layout.Ulysses is %d of %d devices that share sequences: choose a divisor "+
			"between 1 "+
			"and %[2]d", ulysses, devices)
	}
	return devices / ulysses, ulysses, nil
}

// sequences are the keys of what [SequenceDegrees] takes.
type sequences struct {
	devices, ulysses int
	method           string
}

// key is a key of a layout's text, and the number, text, truth value or list of numbers that it sets.
type key struct {
	name string
	of   any
}

// keys lists the keys of a layout's text in the order in which they are written. Layout.Plan and Layout.Hook have none.
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

// ParseLayout reads a layout such as "pipe=2,data=2,tensor=2,zero=1". Its keys are the names of the flags of shardbook
// train; what is not written is 0. A key alone is true, and : stands between the numbers of a list, as in cut=3:2:1. An
// unknown key, a key that is given twice and a value of the wrong kind are errors; [Layout.Validate] says whether the
// layout can be.
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

// set sets what the key is for, or says what is wanted instead of the value.
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

// String is the layout as [ParseLayout] reads it, without what is 0, and without numbers of 1 that could as well be 0.
// Plan and Hook are left out.
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
