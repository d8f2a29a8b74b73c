package retained

// OlderHalf returns the places of the older half of what the owner with the most has, rounded up. There are n things, oldest first.
func OlderHalf(n int, owner func(i int) string) (places []int) {
	of, most := map[string][]int{}, ""
	for i := range n {
		who := owner(i)
		of[who] = append(of[who], i)
		if len(of[who]) > len(of[most]) {
			most = who
		}
	}
	return of[most][:(len(of[most])+1)/2]
}
