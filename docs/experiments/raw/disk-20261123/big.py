#!/usr/bin/env python3
# One file of 700 MB, cold before each round, asked for by C clients at once that throw the bytes away (MSG_TRUNC): worker on
# processor 0, clients on 1. usage: big.py ROUNDS CLIENTS,CLIENTS name=KIND[:extra][|K0=1,..] ...
import os,subprocess,sys,time,socket,select,statistics
W='OUT'; BIN={'nginx':'NGINX','ring':os.environ.get('RR',W+'/rr-knob'),'base':W+'/rr-base'}
def conf(tag,kind,extra):
    c='%s/b%s.conf'%(W,tag)
    s='daemon off; pid %s/%s.pid; error_log %s/%s.err; user root; worker_processes 1; events { worker_connections 1024; %s }'%(W,tag,W,tag,'' if kind=='nginx' else 'use io_uring; ring_recv_buffers 256 4k;')
    if kind!='nginx': s=' '.join('env RR_K%d;'%i for i in range(10))+' '+s
    open(c,'w').write(s+'\nhttp { access_log off; server { listen 127.0.0.1:19512; root %s; %s } }'%(W,extra)); return c
def cpu(w):
    n=0
    for t in os.listdir('/proc/%d/task'%w):
        try: n+=int(open('/proc/%d/task/%s/schedstat'%(w,t)).read().split()[0])
        except OSError: pass
    return n/1e3
def ds():
    f=[l.split() for l in open('/proc/diskstats') if l.split()[2]=='vda'][0]; return int(f[3]),int(f[5])*512,int(f[12]),int(f[13])
def fetch(n):
    os.sched_setaffinity(0,{1}); ss=[]; ep=select.epoll(); buf=bytearray(4<<20); left={}
    for i in range(n):
        s=socket.create_connection(('127.0.0.1',19512)); s.sendall(b'GET /big HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n'); ss.append(s)
        left[s.fileno()]=(s,[0]); ep.register(s.fileno(),select.EPOLLIN)
    tot=0
    while left:
        for fd,_ in ep.poll():
            s,c=left[fd]; k=s.recv_into(buf,4<<20,socket.MSG_TRUNC)
            if not k: ep.unregister(fd); s.close(); del left[fd]
            tot+=k
    return tot
def main():
    rounds=int(sys.argv[1]); cl=[int(x) for x in sys.argv[2].split(',')]; rows=[]
    mem=int(os.environ.get('MEM','0'))
    for i,a in enumerate(sys.argv[3:]):
        name,spec=a.split('=',1); spec,_,k=spec.partition('|'); kind,_,extra=spec.partition(':')
        rows.append((name,BIN[kind],conf('x%d'%i,kind,extra),dict(('RR_'+q.split('=')[0],q.split('=')[1]) for q in k.split(',') if q)))
    res={}; CG='/sys/fs/cgroup/memory/rrbig'; os.makedirs(CG,exist_ok=True)
    open(CG+'/memory.limit_in_bytes','w').write(str(mem<<20) if mem else '-1')
    for r in range(rounds):
        for c in cl:
            for name,b,cf,env in rows:
                open('/proc/sys/vm/drop_caches','w').write('3')
                def pre():
                    open(CG+'/tasks','w').write(str(os.getpid())); os.sched_setaffinity(0,{0})
                p=subprocess.Popen([b,'-c',cf],preexec_fn=pre,env=dict(os.environ,**env),stderr=subprocess.DEVNULL); time.sleep(0.35)
                w=int(subprocess.check_output(['pgrep','-P',str(p.pid)]).split()[0])
                a=cpu(w); d=ds(); t=time.time(); n=fetch(c); t=time.time()-t; e=ds(); u=cpu(w)-a
                p.terminate(); p.wait()
                assert n>c*700<<20, n
                mb=n/2**20; res.setdefault((c,name),[]).append((u/mb,mb/t,e[0]-d[0],(e[1]-d[1])/2**20,(e[2]-d[2])/1e3/t,(e[3]-d[3])/1e3/t))
    os.rmdir(CG); med=statistics.median
    for c in cl:
        b=res[(c,rows[0][0])]
        for name,*_ in rows:
            x=res[(c,name)]; q=[i[0]/j[0] for i,j in zip(x,b)]; v=[i[1]/j[1] for i,j in zip(x,b)]
            print('%2d clients %-20s %6.1f us/MB %6.0f MB/s; of the first: time %.2f (%.2f-%.2f) rate %.2f (%.2f-%.2f); %d reads, %d MB, disk busy %.2f, in flight %.1f'%(c,name,med(i[0] for i in x),med(i[1] for i in x),med(q),min(q),max(q),med(v),min(v),max(v),med(i[2] for i in x),med(i[3] for i in x),med(i[4] for i in x),med(i[5] for i in x)),flush=True)
main()
