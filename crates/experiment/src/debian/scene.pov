// Balls on a chequered floor, one of glass, with a wall that is cut and a light that is seen through it.
#version 3.7;
global_settings { assumed_gamma 1.0 max_trace_level 6 }
camera { location <0, 3, -9> look_at <0, 1, 0> angle 48 }
light_source { <-6, 9, -7> color rgb 1.1 }
light_source { <8, 5, -3> color rgb <0.3, 0.3, 0.4> }
plane { y, 0 pigment { checker color rgb <0.9, 0.9, 0.8> color rgb <0.2, 0.3, 0.4> } finish { reflection 0.15 } }
sky_sphere { pigment { gradient y color_map { [0 color rgb <0.8, 0.9, 1>] [1 color rgb <0.2, 0.4, 0.8>] } } }

#declare Place = seed(3);
#for (Number, 0, 23)
    sphere {
        <6 * rand(Place) - 3, 0.3, 5 * rand(Place) - 3>, 0.15 + 0.25 * rand(Place)
        pigment { color rgb <rand(Place), rand(Place), rand(Place)> }
        finish { phong 0.7 reflection 0.2 * mod(Number, 3) }
    }
#end
sphere { <0.4, 1.2, -1.5>, 0.9 pigment { color rgbf <1, 1, 1, 0.9> } finish { phong 1 } interior { ior 1.5 } }
difference {
    box { <-3, 0, 2.5>, <3, 2.6, 3> }
    union {
        #for (Column, -2, 2)
            cylinder { <Column * 1.1, 1.3, 2>, <Column * 1.1, 1.3, 4>, 0.4 }
        #end
    }
    pigment { bozo scale 0.4 color_map { [0 color rgb <0.6, 0.3, 0.2>] [1 color rgb <0.9, 0.7, 0.5>] } }
    normal { bumps 0.3 scale 0.1 }
}
torus { 0.8, 0.2 rotate <70, 20, 0> translate <-1.8, 1.2, -0.8> pigment { color rgb <0.9, 0.7, 0.1> } finish { reflection 0.4 } }
