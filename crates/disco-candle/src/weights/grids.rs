//! The points of the grids that IQ1, IQ2 and IQ3 of GGUF choose from.
//!
//! A point is a word of 16 bits: eight numbers of 2 bits, or four of 4 bits, the lowest first, which count the values that
//! an element can have. The words of a grid ascend. The text of a grid has the difference of each word to the one before in
//! base 46, the highest digit first: a digit is a character from `#` on, plus 46 if more digits of the number follow.
//! Source: the arrays `iq2xxs_grid`, `iq2xs_grid`, `iq2s_grid`, `iq3xxs_grid`, `iq3s_grid` and `iq1s_grid` of llama.cpp, as its
//! Python package `gguf` 0.19 has them.

/// The digits of a number, and the character of the digit 0.
const BASE: u16 = 46;
const ZERO: u8 = b'#';

/// Reads the text of a grid of `N` points.
const fn grid<const N: usize>(text: &[&str]) -> [u16; N] {
    let mut points = [0; N];
    let (mut point, mut difference, mut last) = (0, 0, 0);
    let mut line = 0;
    while line < text.len() {
        let digits = text[line].as_bytes();
        let mut at = 0;
        while at < digits.len() {
            let digit = (digits[at] - ZERO) as u16;
            difference = difference * BASE + digit % BASE;
            if digit < BASE {
                last += difference;
                points[point] = last;
                (point, difference) = (point + 1, 0);
            }
            at += 1;
        }
        line += 1;
    }
    assert!(point == N, "a grid has another number of points");
    points
}

/// Points of eight elements.
pub(super) static IQ2_XXS: [u16; 256] = grid(&[
    r"#%&&%*&/%)%:&/+,&?%+;S&&/(NR97S/%CS'Y2&/4&?%);D&/7S#%);IF:4S?*R%R9CX=(&/7<&/%R+SCR1U-5qP&/4BCG/(S2+;",
    r"R%-IT=DZ@+;(GR,T1R?T79[B&/R%R6SF(T4TJp@%+R/@B%T@BU#%\(&/R%9TCR6FW;Y+;S;Z5SmP&/+,&?+1-D&/S7CR6B(SC2R-",
    r"15YK+;S'<S@5UG\*&/R%(U&RM,DU.R@o/+,+*S'+SCR3S)V*\(%S?V4RHZ14+R@UGU3r1/R%KT1RJU.R=Z%(VH%S9`/Sy)%+R,R6",
    r"SI7KU<[G&/(NCT9R;RCS<R,CZ'V?VJr(/7?S(S<S1U0Z@EEVJbET8w1RCR*SKV4\Ah9TM",
]);

/// Points of eight elements.
pub(super) static IQ2_XS: [u16; 512] = grid(&[
    r"#%&&%*&%&*%&&<&%&*%&&,&?%&&,&(*S(&%&*%&&%*&?%&&,&/+<&/S7%&&,&/D&/(N-Y*&%&*%&&,&?%&&,&%-D&/S7%&&,&/D&",
    r"/4BSH&/9=%R7Y/%&&%*&/(?&/+KC-RL&/R%R6+S>C+S5-nN&%&*%&&,&?%&&,&/-:&/S7%&&,&/D&/R%7%S2&%-R%CZ%%&&,&/D&",
    r"(*7?SH&/R%U+7R*Z=&/%R#7R'SA(S(V(RMnD%&&%*&/D&/R%CS(&/R%+@T4ES%KX:&/<:U+R64R<S/<T%X;+%9R*R(=U1KS?;S))",
    r"%Sl8&%&*%&&,&?%&&%*&/(?&/S7%&&,&/D&/R%(@S&&/%::ZE%&&,&(*D&/R%7S4&/7?ROS--R//Z6&/R%(21T74R(/<T4r1%&&,",
    r"&/+<&/R%SH&/(N%U)R9S-X8&/4BCDCS&+S?+T2R<R.X@7P2R>SHI%X$o;&/R%71GFRLW3IR=XO9V7R%(S&^*S0U&ULRC1Sm1%&&,",
    r"&/-:&/R%%I%RL&%-R%4+T@CS'%A+X:&/%&NCLS>R9S(S:RGYI+@R*I%IS%W+S%+15nF&/R%9R#SCER7V/R(Y*(R4/+U<S.%TH\9R",
    r"JT<U7R@p1%)%9-S=TJ+RBRO%)ERKCZ%RJ['R(Y%9%)S?+S#SG%T;%S.<",
]);

/// Points of eight elements.
pub(super) static IQ2_S: [u16; 1024] = grid(&[
    r"#%&&%*&%&*%&&<&%&*%&&,&%&:%&&,&/((RL&%&*%&&,&?%&&,&%&*(&<&/%&/&S#%&&,&/-:&%&*(N((-1X@&%&*%&&,&%&:%&&",
    r"%*&%&*%&?&%&*(&,&S#%&&%*&%&*(&<&%&*%&&,&?%&&,&/S(&%&*(N(&,&/D&/Y#%&&,&%&*((:&%&*%&&,&?(29RL&/%&&,B(&",
    r",&/D2S74&1)%IR>o'&%&*%&&,&%=%&&,&%&*%&&<&%-(&,&S#%&&%*&%&*%&&<&%&*%&&,&?%&&,&S4&(*(/&?(/&P&/Y#%&&,&%",
    r"&*(&<&%&*%&&,&?%&&,&/S(&%&*%&&,&?%&&,&/D&/S7(&,&/D&/R%MX8&%&*(&,B%&&,&/D&SC%&&,&/D&/<R.S)/R%9p;%&&,&",
    r"%&*((:&/%&2?--9RL&/%&/B%&/&/D&/S7-;)%=/R-%AX:&%&*(&,&?%&&,&/D&/S7(&,&/D&/9=SH&/R%<Z,(/&P&/R/CRL&/SLS",
    r"<;R7G%Sl8&%&*%&&%*&%=%&&%*&%&*%&?&/(&,&S#%&&,&%&*%&?&%&*%&&,&?%&&,&/S(&/%&&/?(&,&/D&Y/%&&%*&%&*%&&<&",
    r"%&*%&&,&?%&&,&/S(&%&*%&&,&?%&&,&/-:&/S7%&&,&/D&/R%HX=&(*%&&,&?%&&,&/G/S7%&&,&/D&/R%9S2&/R%q#%&&,&%&*",
    r"%&&<&%&*%&&,&?%&&,&S4&%&*%&&,&?%&&,&/D&/S7(&,&/D&/<:Y4&%&*%&&,&?%&&,&/D&/S7%&&,&/D&/R%SH&/9=ZE%&&,&/",
    r"D&/-ISH&/R%U+<S3FnF&%-%&&,&?(&,&/G/S7%&&,&/D&/R%<S2/R%9R@X@(&,&/D&/R%SH&/R%-AMS5T-XN&/RJR(S/MW'S&SkN",
    r"%&&,&(*(?&/%&&,B(/&S4&(*%&&,&?%&&,&P&/<RL((*&P&/Z6&%&*%&&,B%&&,&/D&/S7%&&,&/D&/R%-S>&/<:ZE(/&P&/RGS&",
    r"&R1HU(R+%KCnL&(*%&&/?%&&,&/D&/S7(/&P&/-T@&/R%S-X;%&&,&/D&/R%9S2&/R%RM,S&R;AYP&/9=S0RLR>,WMo/((-1+:&/",
    r"RG+T/HT6+;)%RM)%AX:&/R%R>>S#<WGZ>ASATKR'SI%9%)S'E",
]);

/// Points of four elements.
pub(super) static IQ3_XXS: [u16; 256] = grid(&[
    r"#%%0%',%24R&%T%%0%2'.%26?T)%%02%2%'=)AT%),%6R@T<G06?%T%)NCUNR$TE'%PARS#%0%2%0%%6,TI%22%UJ%0%22R7T'%A",
    r"48CT4'R@U;'ENT-W,ARSC%2%0%'.4U*%%.%22R(',T)%2),%8,8TE2'S#'U,ATIG=R(Y@%6R$RS?2%2%P80T'%A46%U&%08PCT8E",
    r"V::NT')?R(U*EPU;PRS'6A%?'W,TE:,C)T:R3U*RB6U,APYH.%ART7R$R$T))CR$U*AR5T)RFU(6'R@T)R$W.U?ART7C%AU(R5TO",
    r"RBU7)VKU,RBULU;ART7%%,ECU?=U=R(0TG8APU,CU*%EVI",
]);

/// Points of four elements.
pub(super) static IQ3_S: [u16; 512] = grid(&[
    r"#$$&%,$$%%-$'10%&%-%0%2&&SP$$%/$'.&'-'2@'0T'$'%,&&.'.'1&%-%@&T)1'.%2%&1/%8-'T$6'-&11&1BT+%?%'01'%B0T",
    r",.%ADBT(%%?%'0@'RS/$$%/$%%%,%2&%A%.4T'$%&-'02&12%A)T#5&%,'11&5.5T(&&,&1),'0D1T,%0%@%2'-'TF2&12%BU:'&",
    r"@%U&%0%27/D1RRA$%%%,%%%.%',%2%%.%8,&%T$%1&'.&/&12TI&&=%0*-5'=&T%%&/4%0%219T4)<&2&/R&&T(048,6@T)%(=R)",
    r"/T=/8-60RS52%%%.2%%0%&-51T)%%20%@C5'T#515%?TJ2'0%',4%'1AT)1(/2D1'T62%6055@T<NU+%@%6RSN'11'&.22CT+(-%",
    r"21(11'TE%0(/50:.1T-0%0%2'U6%E6,R&T-%=R6TJDOTI(>61RS41'1A'&.71T&%%024R5T'450)@TH(,:@071T'&?57U77N%V,U",
    r"+%ARTD%%?%PT9C*R2TGE1601T)70BUPABT7&R&OT>R0U<%RTB'&<%7-71T926B%U'&/).2DTJR%&ATG'10R%U=CU+R$U:",
]);

/// Points of eight elements, of IQ1_S and IQ1_M.
pub(super) static IQ1: [u16; 2048] = grid(&[
    r"#%&&%*'.%)%>/&%2>%)%..%)%RO$/&%&$.?(&,&(*&%%@/&%2RP%)%..%)%>/+.(:%)%*''*%)%XH&%2?+/(-$O+/S#&$$2&%2:(",
    r"()$&$$&*%&&%:3'&%*&$$&S2(K&/%&&+$(&?/&(XH%)%..%)%>/(2>%)%..%)%RP/&(.$?2$'/&(K&%&/RP%)%..%)%>/++'>%&&",
    r"%..%)%o%$&(.$?&/(&,&$'K&%.'S#&%&*%&&,&(?()$$%$$&*(B1&/&S4&%2>)&,&&%-%B/&%2X=(&.$&$+(>'$%%*&$$&,&&?(*",
    r"'$&$$*&$'RN&(*&$$&*%&&%:&$$.$%$$&$*&$$&:%%$&%)$&$$&$)%&S#&$$2$%%*(=%%$&%*'$%$+&$&$$?'+&2(XI(2?&%&*(&",
    r"%)$&%&?/&4S2%&(*'@%$&,&$$&$)((B+$&&,(&S'01%A%&*%&&,(&?/('o%%)%..%&&%>/++'>%)%..%&&%RP/&(/@%(/&%*&$$B",
    r".)&/S#*%*'.%)%>/(&/?*%*'.%)%X<2%&/B$$&,&&%/B/&(+'S+//+:(&,&$',&&D*'$&%*&%&S#.%*/?+/.$+>%--XG%)%..%)%",
    r">/&4>%)%9%)%S&+&(/D&,&/&%&?.)&.$RP%)%9%)%>/(&/>%)%..%)%SkJ/(2G,&&%*&%R#(+(RO$&%&,&$%%*(&?&%*&$$&$.&%",
    r":&%-%&.$$S*/&%2?4&(-(C.4X=7'3?&%*&$$.$&&%:(&*%&.$+RM$&(*&$$&*((:&$$&*$&$$%$+&$$&<%$&,&$$&$.&%RL''.$&",
    r"%*&(:%&&+$$&$&,&&<'(-$/&%X@/'(.@**(&,&%&?/&%&/S#'$')'$&,&%=((*$%$$&*%&$'?&,&$%,&%&S4R#%&/&%-(N4nI&$$",
    r"&,&(*&(:(&,&$$&/&A&/&+$(&S#&$$*&$$%$*($%%:&$$&*$$%$$%$$*&$$&<&/&$$&*((RL(/&(*&A&(*&$$&,&C.%&'$-XA$/&",
    r"$$%$+'&%:&$$&$)$&$$%$$*$%$$&:+%*&$$&+&$(RL$%$$&*$$%$$&$*&$$&:$$%$$%$*$$%$$%$$)$&$$%$$:&$'$)$&$$%$+&$",
    r"$&RL$$%%%$+&$&$*$$%$$%$;'$%$$)$$%$$%$$*&$'<&$%$$*'(+&$%$X<$$&*(&,,>&%*&$$%$*%%$@**%&&,+RM$&(*&$$&/?&",
    r"$$&*$$%$$%$$*&$$&;''+&$$%$/S&'0()($&?&$+'$%$,&&%:,+&$%%*o#2%&/B/($%%*&%&;82S#&%&,&/$'&?'+'$&/$'=)+&/",
    r"(&S/(&J$(2$%+H/(2XM$&$'*(&:%&&%*&$$&$)%&B$'*%%$$%%*&(S#&%*'$&N$$&*$&$$&+&$$&@&$*'$&$+&$%RO*/.)%$:(&%",
    r"*&$$%%)(&;%&(-%%$*'%'XM&/?4&(*+?/*1RP&/(/&%&:$'$%,&$$&*((;%)./&$'S/(%L&(*(&%-$'@1'%/SkI%)%9%)%>.$&%&",
    r"/>%)%..%)%RP/&%&/?&(*%&$%$.%&?'.%&/RP%)%..%)%J&(/>%)%..%)%XK(K&0'(*&(N(S/+,&(/&:$'&,&$$&$.$%%:&%&*%&",
    r"&1S2(&/?&($)('$*('>/,-X=%)%..%)%:'/&(/':%)%..%)%RP$.&%2?&%&*%&(*&D4&/RP%)%..%)%>/&%M%)%..%)%nH/(%$/?",
    r"(&/&%2$>/&%&/S#&%&*(&%*&%&:(.$&$$&,&B%/&&,&%&S#/&(/B%&*%&&1&?2%6X9&%-(&1=-*&$$%$*$$&B%/%$&,+RL(&%)$&",
    r"$$&+''$:&$$&*$$%$$%$$*&$$&;'&,$%$$&$)%&&%RL&/('*)&?&$+$&$&/&=%($+%$2%&X=4&/?(-%&$'-$C/(&/S&%&*%&&%)$",
    r"&%=%&&%*&$$&,&$':&/%&(*(S&33B%&*(&,G/&$$o)%)%..%)%>/&%&J%)%..%)%RP'+&%&$O&+'&%*&D.%'&S0)%),,)%>/(&/>",
    r"%)%..%)%XP/?&/'$&%*'$%$?SH&*%&&1&<&/&$$&/(:&$$&,&&S4/('*'B%'+&$%+%G-($&+&%X;%)%9%)%J&%&J%)%..%)%RP2(",
    r"+'?2((*(&J)S1%)%9%)%J&%M%)%..%)%",
]);
