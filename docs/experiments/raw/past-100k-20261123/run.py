#!/usr/bin/env python3
# cold 100 KiB: 5120 files of 100 KiB (512 MiB), 128 MiB of memory a server (cgroup v1), one worker on cpu 0, wrk on cpu 1, 200 connections
import os,subprocess,sys,time,random,statistics
D='/var/tmp/c100'; N=5120
if not os.path.exists(D+'/f/255/0'):
    os.makedirs(D+'/f',exist_ok=True)
    for i in range(N):
        d='%s/f/%d'%(D,i%256); os.makedirs(d,exist_ok=True)
        open('%s/%d'%(d,i//256),'wb').write(os.urandom(102400))
    os.sync()
LUA=D+'/r.lua'
open(LUA,'w').write('math.randomseed(os.time())\nfunction request() local i=math.random(0,%d) return wrk.format("GET", string.format("/%%d/%%d", i%%256, math.floor(i/256))) end\n'%(N-1))
def conf(kind,extra):
    c=D+'/%s.conf'%kind
    if kind.startswith('nginx'):
        s='''daemon off; pid %s/n.pid; error_log %s/n.err; user root; worker_processes 1; events { worker_connections 4096; worker_aio_requests 2048; }
http { access_log off; keepalive_requests 1000000000; server { listen 127.0.0.1:19501 backlog=4096; root %s/f; %s } }'''%(D,D,D,extra)
        s=s.replace('worker_aio_requests 2048; }','}').replace('events {','events { worker_aio_requests 2048;')
    else:
        s='''daemon off; pid %s/r.pid; error_log %s/r.err; user root; env RR_PAST_FROM; env RR_K; env RR_M; worker_processes 1; events { worker_connections 4096; use io_uring; ring_recv_buffers 256 4k; }
http { access_log off; keepalive_requests 1000000000; server { listen 127.0.0.1:19501 backlog=4096; root %s/f; %s } }'''%(D,D,D,extra)
    open(c,'w').write(s); return c
CG='/sys/fs/cgroup/memory/c100'
def run(name,bin,conf,env):
    os.makedirs(CG,exist_ok=True)
    open(CG+'/memory.limit_in_bytes','w').write(str(int(os.environ.get('MEM','128'))<<20))
    open('/proc/sys/vm/drop_caches','w').write('3')
    def pre():
        open(CG+'/tasks','w').write(str(os.getpid())); os.sched_setaffinity(0,{0})
    p=subprocess.Popen([bin,'-c',conf],preexec_fn=pre,env=dict(os.environ,**env),stderr=subprocess.DEVNULL)
    time.sleep(0.7)
    w=int(subprocess.check_output(['pgrep','-P',str(p.pid)]).split()[0])
    def cpu(): f=open('/proc/%d/stat'%w).read().rsplit(')',1)[1].split(); return int(f[11])+int(f[12])
    subprocess.run(['taskset','-c','1','wrk','-t1','-c200','-d2','-s',LUA,'http://127.0.0.1:19501/'],capture_output=True,timeout=20)
    a=cpu()
    o=subprocess.run(['taskset','-c','1','wrk','-t1','-c200','-d2','--latency','-s',LUA,'http://127.0.0.1:19501/'],capture_output=True,text=True,timeout=20).stdout
    b=cpu(); p.terminate(); p.wait(); time.sleep(0.1)
    os.rmdir(CG)
    n=[int(l.split()[0]) for l in o.splitlines() if 'requests in' in l][0]
    r=[float(l.split()[1]) for l in o.splitlines() if 'Requests/sec' in l][0]
    p99=[l.split()[1] for l in o.splitlines() if l.strip().startswith('99%')][0]
    bad=[l for l in o.splitlines() if 'Non-2xx' in l or 'Socket err' in l]
    return r,(b-a)*10000/n,p99,bad
KN='rr-knob'
dio='directio 4k;'
NEW,OLD='rr-new','rr-base'
ALL={
 'nginx threads':('nginx',conf('nginx1','sendfile on; aio threads;'),{}),
 'direct':(NEW,conf('rr',dio),{}),
 'default, old':(OLD,conf('rr2',''),{}),
 'default, new':(NEW,conf('rr2',''),{}),
}
names=sys.argv[2].split(',') if len(sys.argv)>2 else list(ALL)
res={n:[] for n in names}
def limit():
    open('/proc/sys/vm/drop_caches','w').write('3')
    o=subprocess.run(['fio','--name=x','--directory='+D,'--opendir='+D+'/f'] ,capture_output=True)
for r in range(int(sys.argv[1])):
    for n in names:
        x=run(n,*ALL[n]); res[n].append(x); print(n,'%.0f/s %.1f us p99 %s %s'%x,flush=True)
b=names[0]
for n in names:
    print('%-24s rate %.2f cpu %.2f  (%s)'%(n,statistics.median(x[0]/y[0] for x,y in zip(res[n],res[b])),statistics.median(x[1]/y[1] for x,y in zip(res[n],res[b])),' '.join('%.2f'%(x[0]/y[0]) for x,y in zip(res[n],res[b]))))
