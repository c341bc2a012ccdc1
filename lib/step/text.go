package step

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Blocks returns n blocks with no names, and a unit for each: a pipeline's stages.
func Blocks(n int) (blocks []Block, units []Unit) {
	blocks, units = make([]Block, n), make([]Unit, n)
	numbers := make([]int, n)
	for b := range blocks {
		numbers[b] = b
		blocks[b].Units = numbers[b : b+1 : b+1]
	}
	return blocks, units
}

// String is the plan as text, which [Parse] reads. A pipeline's schedule, whose blocks have a unit each and no more, is
//
//	schedule 1f1b stages=2 microbatches=2 every=2 weights=flush
//	rank 0: 0F0 0F1 0B0 0B1 0U1
//	rank 1: 1F0 1B0 1F1 1B1 1U1
//
// Any other has lines for its axes, units and blocks as well, less the blocks that have no name and the unit of the
// same number. Ranks with equal lists have one line:
//
//	plan zero-3 blocks=2 microbatches=1 every=1 weights=flush
//	axis data size=4 groups=0-3
//	units 0-1 reduce=data shard=data
//	ranks 0-3: 0UNSHARD 0F0 …
//
// [Plan.Text] has the operations. The peer of Send and Recv is the rank that has the other one; where several have it,
// as in replicas of a pipeline, the first rank that sends means the first that receives, and so on. Where it is another
// it is written, as in 2SEND_F0>3. A name that is not made of letters, digits and -_.+/ alone is quoted as in Go.
func (p *Plan) String() string {
	var b strings.Builder
	for _, line := range p.header() {
		fmt.Fprintln(&b, line)
	}
	var lists []string
	ranks := map[string][]int{}
	for r, list := range p.rankTexts(" ") {
		if p.isSchedule() { // as in version 0.1
			lists = append(lists, fmt.Sprintf("rank %d:%s\n", r, list))
			continue
		}
		if ranks[list] == nil {
			lists = append(lists, list)
		}
		ranks[list] = append(ranks[list], r)
	}
	for _, list := range lists {
		switch same := ranks[list]; {
		case same == nil:
			b.WriteString(list)
		default:
			fmt.Fprintf(&b, "rank%s %s:%s\n", plural(same), setText(same), list)
		}
	}
	return b.String()
}

func plural(set []int) string {
	if len(set) > 1 {
		return "s"
	}
	return ""
}

// rankTexts are the ranks' lists, each operation behind a separator.
func (p *Plan) rankTexts(separator string) (lists []string) {
	peers := p.peers()
	for r, list := range p.Ranks {
		var b strings.Builder
		for i, op := range list {
			b.WriteString(separator)
			b.WriteString(p.Text(op))
			if usual := peers.of(r, i); op.Peer != usual {
				fmt.Fprintf(&b, ">%d", op.Peer)
			}
		}
		lists = append(lists, b.String())
	}
	return lists
}

// isSchedule tells whether the plan has nothing that a pipeline's schedule has not, but for its operations.
func (p *Plan) isSchedule() bool {
	for b, block := range p.Blocks {
		if b >= len(p.Units) || block.Name != "" || !slices.Equal(block.Units, []int{b}) ||
			p.Units[b].Name != "" || len(p.Units[b].Reduce) > 0 || p.Units[b].Shard != "" {
			return false
		}
	}
	return len(p.Axes) == 0 && len(p.Units) == len(p.Blocks)
}

// header is all but the ranks' lists, in lines.
func (p *Plan) header() []string {
	sizes := fmt.Sprintf("microbatches=%d every=%d weights=%s", p.Micro, p.Every, p.Weights)
	if p.isSchedule() {
		return []string{fmt.Sprintf("schedule %s stages=%d %s", quote(p.Name), len(p.Blocks), sizes)}
	}
	units := ""
	if len(p.Units) != len(p.Blocks) {
		units = fmt.Sprintf("units=%d ", len(p.Units))
	}
	lines := []string{fmt.Sprintf("plan %s blocks=%d %s%s", quote(p.Name), len(p.Blocks), units, sizes)}
	for _, a := range p.Axes {
		line := fmt.Sprintf("axis %s size=%d", quote(a.Name), a.Size)
		var groups []string
		for _, g := range a.Groups {
			groups = append(groups, setText(g))
		}
		if len(groups) > 0 {
			line += " groups=" + strings.Join(groups, "|")
		}
		lines = append(lines, line)
	}
	lines = append(lines, alike("unit", len(p.Units), func(u int) (text string) {
		if p.Units[u].Name != "" {
			text += " " + quote(p.Units[u].Name)
		}
		if axes := p.Units[u].Reduce; len(axes) > 0 {
			text += " reduce=" + strings.Join(axes, ",")
		}
		if shard := p.Units[u].Shard; shard != "" {
			text += " shard=" + shard
		}
		return text
	})...)
	return append(lines, alike("block", len(p.Blocks), func(b int) (text string) {
		if p.Blocks[b].Name != "" {
			text += " " + quote(p.Blocks[b].Name)
		}
		if !slices.Equal(p.Blocks[b].Units, []int{b}) {
			text += " units=" + setText(p.Blocks[b].Units)
		}
		return text
	})...)
}

// alike writes lines for n things, one for several that follow each other and are alike, none where nothing is said.
func alike(name string, n int, say func(i int) string) (lines []string) {
	for from, to := 0, 0; from < n; from = to {
		text := say(from)
		var same []int
		for to = from; to < n && say(to) == text; to++ {
			same = append(same, to)
		}
		if text != "" {
			lines = append(lines, name+plural(same)+" "+setText(same)+text)
		}
	}
	return lines
}

func quote(name string) string {
	if plain(name) {
		return name
	}
	return strconv.Quote(name)
}

// setText writes numbers in their order, those that follow each other as in 0-3.
func setText(set []int) string {
	var b strings.Builder
	for i := 0; i < len(set); i++ {
		first := i
		for i+1 < len(set) && set[i+1] == set[i]+1 {
			i++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, set[first])
		if i > first {
			fmt.Fprint(&b, "-", set[i])
		}
	}
	return b.String()
}

// lanes says which operation is the other end of a message: that of the rank whose turn it is to have one like it.
type lanes struct {
	p     *Plan
	ends  map[Op][2][]int32 // of each message, as what sends it, the ranks that send it and those that receive it
	turns [][]int32         // of each operation, which of its kind for that message it is
}

// sent is the message that an operation sends or receives, as what sends it; its second value is which of these it is.
func (op Op) sent() (message Op, receives int) {
	message = Op{Kind: Send, What: op.What, Block: op.Block, Micro: op.Micro}
	if op.Kind == Send {
		return message, 0
	}
	if op.What == Activation {
		message.Block--
	} else {
		message.Block++
	}
	return message, 1
}

func (p *Plan) peers() *lanes {
	l := &lanes{p: p, ends: map[Op][2][]int32{}, turns: make([][]int32, len(p.Ranks))}
	for r, list := range p.Ranks {
		for i, op := range list {
			if op.Kind != Send && op.Kind != Recv {
				continue
			}
			if l.turns[r] == nil {
				l.turns[r] = make([]int32, len(list))
			}
			message, end := op.sent()
			ends := l.ends[message]
			l.turns[r][i] = int32(len(ends[end]))
			ends[end] = append(ends[end], int32(r))
			l.ends[message] = ends
		}
	}
	return l
}

// of is the peer that the operation of a rank has if none is written: 0 where there is none.
func (l *lanes) of(rank, at int) int {
	op := l.p.Ranks[rank][at]
	if op.Kind != Send && op.Kind != Recv {
		return 0
	}
	message, end := op.sent()
	if others := l.ends[message][1-end]; int(l.turns[rank][at]) < len(others) {
		return int(others[l.turns[rank][at]])
	}
	return 0
}
