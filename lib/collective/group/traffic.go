package group

import (
	"context"
	"sync"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

// Counted is a rank's view of a group that counts what the rank sends: its calls of
// Send, by hand or by RunPlan, so that it can be compared with what a plan says
// (plan.Plan.Count, plan.Formula). What collectives do inside is not counted, nor what
// goes through sub-groups.
type Counted struct {
	Group
	mu   sync.Mutex
	sent []plan.Load
}

// Count returns a view of g that counts from here on.
func Count(g Group) *Counted { return &Counted{Group: g, sent: make([]plan.Load, g.Size())} }

// Sent is what the rank has sent without an error, by receiver.
func (c *Counted) Sent() []plan.Load {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]plan.Load(nil), c.sent...)
}

// Total is what the rank has sent to all others together.
func (c *Counted) Total() (total plan.Load) {
	for _, load := range c.Sent() {
		total.Messages += load.Messages
		total.Bytes += load.Bytes
	}
	return total
}

// Do makes a call, and counts it if it is a send.
func (c *Counted) Do(ctx context.Context, call Call) error {
	err := c.Group.Do(ctx, call)
	c.count(call, err)
	return err
}

// Start makes a call in the background, and counts it if it is a send.
func (c *Counted) Start(ctx context.Context, call Call) *Pending {
	p := c.Group.Start(ctx, call)
	if call.Kind != KindSend {
		return p
	}
	return NewPending(func() error {
		err := p.Wait()
		c.count(call, err)
		return err
	})
}

func (c *Counted) count(call Call, err error) {
	if call.Kind != KindSend || err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent[call.Peer].Messages++
	c.sent[call.Peer].Bytes += call.In.Len * call.Type.Size()
}
