#!/usr/bin/env python3
# Profile of one server while it serves: prof.py KIND(ring|nginx) SET MEM_MB CONNS SECONDS OUTNAME EXTRA
# perf (cpu-clock, both processors), the disk's busy time and reads in flight every 5 ms, system calls per request.
import os,subprocess,sys,time,statistics,threading
W='OUT'
kind,st,mem,conns,secs,out,extra=sys.argv[1],sys.argv[2],int(sys.argv[3]),sys.argv[4],int(sys.argv[5]),sys.argv[6],sys.argv[7]
NG='NGINX'; RR=os.environ.get('RR',W+'/rr-base')
c=W+'/prof.conf'
if kind=='nginx':
    s='daemon off; pid %s/n.pid; error_log %s/n.err; user root; worker_processes 1; events { worker_aio_requests 2048; worker_connections 4096; }'%(W,W)
else:
    s='daemon off; pid %s/r.pid; error_log %s/r.err; user root; worker_processes 1; events { worker_connections 4096; use io_uring; ring_recv_buffers 256 4k; }'%(W,W)
open(c,'w').write(s+'\nhttp { access_log off; keepalive_requests 1000000000; server { listen 127.0.0.1:19511 backlog=4096; root %s; %s } }'%(W+'/'+st if st!='big' else W,extra))
lua=W+'/p.lua'
n={'c100':5120,'c4':131072,'w4':2000}.get(st,0)
open(lua,'w').write('math.randomseed(os.time())\nfunction request() local i=math.random(0,%d) return wrk.format("GET", string.format("/%%d/%%d", i%%256, math.floor(i/256))) end\n'%(n-1) if n else 'function request() return wrk.format("GET","/big") end\n')
CG='/sys/fs/cgroup/memory/rrprof'
os.makedirs(CG,exist_ok=True)
open(CG+'/memory.limit_in_bytes','w').write(str(mem<<20) if mem else '-1')
open('/proc/sys/vm/drop_caches','w').write('3')
def pre():
    open(CG+'/tasks','w').write(str(os.getpid())); os.sched_setaffinity(0,{0})
p=subprocess.Popen([RR if kind=='ring' else NG,'-c',c],preexec_fn=pre,stderr=subprocess.DEVNULL)
time.sleep(0.6)
w=int(subprocess.check_output(['pgrep','-P',str(p.pid)]).split()[0])
def wrk(s): return subprocess.Popen(['taskset','-c','1','wrk','-t1','-c'+conns,'-d%d'%s,'--latency','-s',lua,'http://127.0.0.1:19511/'],stdout=subprocess.PIPE,text=True)
def cpu():
    f=open('/proc/%d/stat'%w).read().rsplit(')',1)[1].split(); return int(f[11]),int(f[12])
def ds():
    f=[l.split() for l in open('/proc/diskstats') if l.split()[2]=='vda'][0]; return int(f[3]),int(f[5])*512,int(f[12]),int(f[13]),int(f[11])
if st!='big': wrk(1).communicate()
a=cpu(); d0=ds(); t0=time.time()
g=wrk(secs)
perf=subprocess.Popen(['perf','record','-q','-a','-e','cpu-clock','-F','1999','-o',W+'/'+out+'.data','--','sleep',str(secs-0.3)],stderr=subprocess.DEVNULL)
fl=[]
while g.poll() is None:
    fl.append(ds()[4]); time.sleep(0.005)
o=g.stdout.read(); t=time.time()-t0; b=cpu(); d1=ds(); perf.wait()
nr=[int(l.split()[0]) for l in o.splitlines() if 'requests in' in l][0]
ln=[l for l in o.splitlines() if 'Requests/sec' in l or 'Transfer' in l or l.strip().startswith(('50%','99%'))]
f=open(W+'/'+out+'.txt','w')
def pr(*x): print(*x); print(*x,file=f)
pr('#',kind,st,'memory',mem,'MiB, connections',conns,extra)
pr('#',' '.join(x.strip() for x in ln))
mb=(d1[1]-d0[1])/2**20
pr('# worker user %.2f s system %.2f s of %.2f s; disk busy %.2f, %.0f reads of %.0f KiB, %.0f MB/s, %.1f MB read; in flight mean %.1f by time, sampled quartiles %s'%((b[0]-a[0])/100,(b[1]-a[1])/100,t,(d1[2]-d0[2])/1000/t,d1[0]-d0[0],(d1[1]-d0[1])/1024/max(1,d1[0]-d0[0]),mb/t,mb,(d1[3]-d0[3])/1000/t,statistics.quantiles(fl,n=4) if len(fl)>3 else fl))
if not n and nr: pr('# us of processor for each MB: %.1f'%(((b[0]-a[0]+b[1]-a[1])*10000)/(nr*700)))
def rep(args,lines):
    r=subprocess.run(['perf','report','-i',W+'/'+out+'.data','--stdio','-q']+args,capture_output=True,text=True,stdin=subprocess.DEVNULL).stdout
    pr('\n'.join([l.rstrip() for l in r.splitlines() if l.strip()][:lines]))
rep(['--sort','cpu,comm','--percent-limit','0.5'],14)
pr('# worker and kernel threads on its processor, by symbol')
rep(['--sort','comm,dso,sym','--cpu','0','--percent-limit','0.45'],int(os.environ.get('LINES_MAX','45')))
if os.environ.get('STRACE'):
    g=wrk(2)
    s=subprocess.run(['timeout','-s','INT','1.5','strace','-f','-c','-p',str(w)],capture_output=True,text=True)
    g.communicate(); pr('# strace -c, 1.5 s'); pr('\n'.join(s.stderr.splitlines()[:22]))
p.terminate(); p.wait(); time.sleep(0.1); os.rmdir(CG); os.remove(W+'/'+out+'.data')
