package group

import "context"

// Exchange is an all-gather of messages of any length: it returns every rank's message, in the order of the ranks.
func Exchange(ctx context.Context, g Group, own []byte) ([][]byte, error) {
	sizes := make([]int64, g.Size())
	if err := AllGather(ctx, g, []int64{int64(len(own))}, sizes); err != nil {
		return nil, err
	}
	longest := int64(1)
	for _, n := range sizes {
		longest = max(longest, n)
	}
	padded := make([]byte, longest)
	copy(padded, own)
	all := make([]byte, len(padded)*g.Size())
	if err := AllGather(ctx, g, padded, all); err != nil {
		return nil, err
	}
	messages := make([][]byte, g.Size())
	for i := range messages {
		messages[i] = all[i*len(padded):][:sizes[i]]
	}
	return messages, nil
}
