package main
import ("testing";"os";"time";"fmt";"strconv";"syscall"
"github.com/shardbook/shardbook/lib/xla")
func TestZZStep(t *testing.T){
 if os.Getenv("ZZ")=="" {t.Skip()}
 n,_:=strconv.Atoi(os.Getenv("ZZ"))
 size:=trainSizes[1]
 if os.Getenv("SMALL")!="" {size=trainSizes[0]}
 if os.Getenv("GPT2")!="" {size=trainSize{12,768,12,64,4}}
 b,err:=xla.Open(xla.Devices(1)); if err!=nil{t.Fatal(err)}
 tr:=gptTrial(startOne,false)
 js:=fmt.Sprintf(`{"layers":%d,"d":%d,"heads":%d,"seq":%d,"batch":%d}`,size.Layers,size.Width,size.Heads,size.Seq,size.Batch)
 tt,err:=tr([]byte(js)); if err!=nil{t.Fatal(err)}
 s:=&trainSubject{backend:b,task:tt}
 t0:=time.Now()
 l,err:=s.first(tt.batch); if err!=nil{t.Fatal(err)}
 fmt.Println("first4",time.Since(t0),l)
 m,_:=s.memory(); fmt.Println("temp",m.Temporary>>20)
 best:=time.Hour
 var r0,r1 syscall.Rusage
 syscall.Getrusage(0,&r0)
 for i:=0;i<n;i++{ t0:=time.Now(); s.step(); if d:=time.Since(t0);d<best{best=d} }
 syscall.Getrusage(0,&r1)
 fmt.Println("best",best,"user/step",time.Duration(r1.Utime.Nano()-r0.Utime.Nano())/time.Duration(n),"sys",time.Duration(r1.Stime.Nano()-r0.Stime.Nano())/time.Duration(n),"faults",(r1.Minflt-r0.Minflt)/int64(n),"peak MB",r1.Maxrss>>10)
}
