// Goroutines on several threads compute the same thing again and again, for as many milliseconds as the argument says. The runtime
// interrupts them by signals all the time.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"sync"
	"time"
)

func work(n int) (total uint64) {
	for i := 0; i < 1000000; i++ {
		total = total*31 + uint64(i*n)
	}
	list := []int{}
	for i := 0; i < 2000; i++ {
		list = append(list, (i*7919+n)%1000)
	}
	sort.Ints(list)
	for _, value := range list {
		total = total*17 + uint64(value)
	}
	return total
}

func round() (total uint64) {
	var group sync.WaitGroup
	var lock sync.Mutex
	for n := 0; n < 8; n++ {
		group.Add(1)
		go func(n int) {
			defer group.Done()
			result := work(n)
			lock.Lock()
			total += result
			lock.Unlock()
		}(n)
	}
	group.Wait()
	return total
}

func main() {
	runtime.GOMAXPROCS(4)
	milliseconds, _ := strconv.Atoi(os.Args[1])
	expected, bad, rounds := round(), 0, 0
	for end := time.Now().Add(time.Duration(milliseconds) * time.Millisecond); time.Now().Before(end); rounds++ {
		if round() != expected {
			bad++
		}
		time.Sleep(time.Millisecond)
	}
	fmt.Println("bad", bad, "many", rounds > 1)
}
