#!/usr/bin/env python3
# Cold (or warm) files, one worker on cpu 0, wrk on cpu 1, N connections. Servers in turns.
# usage: run.py ROUNDS SET MEM_MB SECONDS name=KIND[:extra][|K0=..] ...
import os,subprocess,sys,time,statistics
W='OUT'
SETS={'w4':2000,'c100':5120,'c4':131072,'c16':32768}
def conf(tag,kind,root,extra):
    c='%s/%s.conf'%(W,tag)
    env=' '.join('env RR_K%d;'%i for i in range(10))
    if kind=='nginx':
        s='daemon off; pid %s/n.pid; error_log %s/n.err; user root; worker_processes 1; events { worker_aio_requests 2048; worker_connections 4096; }'%(W,W)
    else:
        s='daemon off; pid %s/r.pid; error_log %s/r.err; user root; %s worker_processes 1; events { worker_connections 4096; use io_uring; ring_recv_buffers 256 4k; }'%(W,W,env)
    s+='\nhttp { access_log off; keepalive_requests 1000000000; server { listen 127.0.0.1:19511 backlog=4096; root %s; %s } }'%(root,extra)
    open(c,'w').write(s); return c
CG='/sys/fs/cgroup/memory/rrdisk'
BIN={'limit':'limit','nginx':'NGINX','base':os.environ.get('BASE',W+'/rr-base'),'knob':os.environ.get('KNOB',W+'/rr-knob'),'new':os.environ.get('NEW',W+'/rr-new')}
CONNS=os.environ.get('CONNS','200')
def stats():
    f=[l.split() for l in open('/proc/diskstats') if l.split()[2]=='vda'][0]
    return int(f[3]),int(f[5])*512,int(f[12]),int(f[13])
def limit(st):
    o=subprocess.run([BIN['base'],'bench','disk','--files',W+'/'+st,'--engine','uring','--jobs','2','--seconds','0.6','--repeat','1','--out',W+'/lim'],capture_output=True,text=True,timeout=60)
    l=[l for l in open(W+'/lim/report.md') if l.startswith('| uring, depth '+os.environ.get('LDEPTH','32')+' ') or l.startswith('| uring, depth 64 ')][0]
    r=float(l.split('|')[2].split('(')[0].replace(' ','').replace('\u202f','').replace('\xa0',''))
    return dict(rate=r,cpu=1,user=0,sys=0,p99='-',busy=0,client=0,disk=0,depth=0,mb=0,bad=[])
def run(tag,bin,c,env,lua,mem,secs):
    if bin=='limit': return limit(os.path.basename(sys.argv[2]))
    os.makedirs(CG,exist_ok=True)
    open(CG+'/memory.limit_in_bytes','w').write(str(mem<<20))
    open('/proc/sys/vm/drop_caches','w').write('3')
    def pre():
        open(CG+'/tasks','w').write(str(os.getpid())); os.sched_setaffinity(0,{0})
    p=subprocess.Popen([bin,'-c',c],preexec_fn=pre,env=dict(os.environ,**env),stderr=subprocess.DEVNULL)
    time.sleep(0.6)
    w=int(subprocess.check_output(['pgrep','-P',str(p.pid)]).split()[0])
    def cpu(pid=None):
        f=open('/proc/%d/stat'%w).read().rsplit(')',1)[1].split(); return int(f[11]),int(f[12])
    warm=float(os.environ.get('WARM','1'))
    def wrk(s): return subprocess.run(['taskset','-c','1','wrk','-t1','-c'+CONNS,'-d%gs'%s if s==int(s) else '-d%ds'%max(1,round(s)),'--latency','-s',lua,'http://127.0.0.1:19511/'],capture_output=True,text=True,timeout=60)
    wrk(warm)
    import resource
    u0=resource.getrusage(resource.RUSAGE_CHILDREN); a=cpu(); d0=stats(); t0=time.time()
    o=wrk(secs).stdout
    t=time.time()-t0; b=cpu(); d1=stats(); u1=resource.getrusage(resource.RUSAGE_CHILDREN)
    p.terminate(); p.wait(); time.sleep(0.1)
    os.rmdir(CG)
    n=[int(l.split()[0]) for l in o.splitlines() if 'requests in' in l][0]
    r=[float(l.split()[1]) for l in o.splitlines() if 'Requests/sec' in l][0]
    p99=[l.split()[1] for l in o.splitlines() if l.strip().startswith('99%')][0]
    bad=[l for l in o.splitlines() if 'Non-2xx' in l or 'Socket err' in l]
    us=(b[0]-a[0])*10000/n; sy=(b[1]-a[1])*10000/n
    cl=(u1.ru_utime+u1.ru_stime-u0.ru_utime-u0.ru_stime)/t
    return dict(rate=r,cpu=us+sy,user=us,sys=sy,p99=p99,busy=(us+sy)*n/1e6/t,client=cl,disk=(d1[2]-d0[2])/1000/t,depth=(d1[3]-d0[3])/1000/t,mb=(d1[1]-d0[1])/n/1024,bad=bad)
def main():
    rounds,st,mem,secs=int(sys.argv[1]),sys.argv[2],int(sys.argv[3]),float(sys.argv[4])
    n=int(os.environ.get('NFILES',SETS[st]))
    lua=W+'/r.lua'
    open(lua,'w').write('math.randomseed(os.time())\nfunction request() local i=math.random(0,%d) return wrk.format("GET", string.format("/%%d/%%d", i%%256, math.floor(i/256))) end\n'%(n-1))
    rows=[]
    for i,a in enumerate(sys.argv[5:]):
        name,spec=a.split('=',1); spec,_,knobs=spec.partition('|'); kind,_,extra=spec.partition(':')
        env=dict(('RR_'+k.split('=')[0],k.split('=')[1]) for k in knobs.split(',') if k)
        rows.append((name,BIN[kind],conf('c%d'%i,kind,W+'/'+st,extra),env))
    res={r[0]:[] for r in rows}
    for k in range(rounds):
        for name,b,c,env in rows:
            x=run(name,b,c,env,lua,mem,secs); res[name].append(x)
            print('%-26s %7.0f/s %6.1f us (%.1f user) p99 %s busy %.2f client %.2f disk %.2f depth %.0f KiB/req %.1f %s'%(name,x['rate'],x['cpu'],x['user'],x['p99'],x['busy'],x['client'],x['disk'],x['depth'],x['mb'],x['bad'] or ''),flush=True)
    b=res[rows[0][0]]; med=statistics.median
    print('# of '+rows[0][0])
    for name in res:
        q=[x['rate']/y['rate'] for x,y in zip(res[name],b)]
        c=[x['cpu']/y['cpu'] for x,y in zip(res[name],b)]
        print('# %-26s rate %.2f (%.2f-%.2f) cpu %.2f (%.2f-%.2f) busy %.2f disk %.2f depth %.0f'%(name,med(q),min(q),max(q),med(c),min(c),max(c),med(x['busy'] for x in res[name]),med(x['disk'] for x in res[name]),med(x['depth'] for x in res[name])),flush=True)
main()
